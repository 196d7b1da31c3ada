"""An audit of anything that turns images into features: a client of ours, a module, or a black box behind a function.

result = splitveil.audit(my_encoder, my_images)
result.best.leak, result.reasons
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from splitveil.attacks import oracle_of
from splitveil.bounds import Bound, bounds_of
from splitveil.check import UsageError
from splitveil.data import ImageSet
from splitveil.evaluation.evaluate import evaluate
from splitveil.evaluation.play import Progress
from splitveil.evaluation.rehearsal import rehearse
from splitveil.evaluation.result import Result
from splitveil.evaluation.roles import Roles, roles_of, split_roles
from splitveil.evaluation.stage import PROBES
from splitveil.evaluation.suite import Suite
from splitveil.evaluation.suites import suite_named
from splitveil.split import Client, device_of


def audit(
    client: object,
    images: ImageSet | Tensor | np.ndarray,
    *,
    suite: str | Suite = "cheap",
    labels: Tensor | np.ndarray | None = None,
    seeds: Sequence[int] = (0,),
    out: Path | str | None = None,
    keep_samples: bool | None = None,
    progress: Progress | None = None,
    client_name: str | None = None,
) -> Result:
    """What a suite of attacks reconstructs from what this client sends.

    `client` is a Client, an nn.Module (its output is what is sent), or any function from images to features, which is
    attacked as a black box. `images` is an image set with roles, or an array [image, channel, height, width] in [0, 1]
    that is dealt out here, always the same way: 60 % to the attacker, 15 % to choose checkpoints, 25 % victims. The
    result of a Client has its bounds for one release too. With `out`, a function whose answers are random is attacked
    anew at each call, unless it has a `client_name`: then that stands for it.
    """
    chosen = suite_named(suite) if isinstance(suite, str) else suite  # a wrong word is told before any work
    data = roles_of(images) if isinstance(images, ImageSet) else _roles(images, labels)
    bounds = _bounds(client, data) if isinstance(client, Client) else ()
    return evaluate(
        client,
        chosen,
        data,
        seeds=seeds,
        out=out,
        bounds=bounds,
        keep_samples=keep_samples,
        progress=progress,
        client_name=client_name,
    )


def _bounds(client: Client, data: Roles) -> tuple[Bound, ...]:
    """What bounds the errors of all attacks, once the client is known to work."""
    few = data.auxiliary.take(min(PROBES, len(data.auxiliary)))
    rehearse(oracle_of(client), few.to(device_of(client) or few.device).images())
    return bounds_of(client, data.for_bounds())


def _roles(images: Tensor | np.ndarray, labels: Tensor | np.ndarray | None) -> Roles:
    tensor = torch.as_tensor(images)
    if tensor.ndim != 4 or not tensor.is_floating_point():
        got = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
        raise UsageError(f"images must be floats in [0, 1] of shape [image, channel, height, width], got {got}")
    named = None if labels is None else torch.as_tensor(labels)
    if named is not None and (named.shape != tensor.shape[:1] or named.is_floating_point()):
        raise UsageError(f"labels must be {len(tensor)} integers, got {named.dtype} of shape {tuple(named.shape)}")
    return split_roles(tensor.float(), named)
