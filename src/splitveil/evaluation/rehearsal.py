"""What would fail later is told at once, in one line: seeds, another client's result, a client tried on some images."""

from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

import torch
from torch import Tensor

from splitveil.attacks import Oracle
from splitveil.check import SplitVeilError, UsageError
from splitveil.evaluation.result import Result
from splitveil.evaluation.roles import Roles
from splitveil.randomness import SeededSource
from splitveil.split import Client, evaluating
from splitveil.types import Images

MOST_WORDS = 200  # characters of a message that is not ours
Answer = TypeVar("Answer")
SENT_AS_IT_IS = (torch.float32, torch.float16, torch.bfloat16)  # a client makes float32 of the latter two


def different(seeds: object) -> tuple[int, ...]:
    """Seeds that are whole numbers, at least one, and no two the same.

    >>> different(range(3))
    (0, 1, 2)
    """
    found = tuple(seeds) if isinstance(seeds, Sequence) else (None,)
    numbers = tuple(each for each in found if isinstance(each, int))
    if not found or len(set(numbers)) != len(found):
        got = list(found) if isinstance(seeds, Sequence) else seeds
        raise UsageError(f"seeds must be different numbers, at least one, got {got}; give a list, or range(3)")
    return numbers


def why_strange(undefended: Result, roles: Roles, client: str) -> str | None:
    """Why a result says nothing of the client with this fingerprint without its defense; None where it may."""
    if undefended.data_sha256 != roles.sha256:
        return (
            f"is a result on other images ({undefended.data}, {undefended.data_sha256[:8]}) than "
            f"these ({roles.name}, {roles.sha256[:8]}); attack the undefended client on these"
        )
    is_same = undefended.client == client
    return "is a result of this very client; give that of one without its defense" if is_same else None


@torch.no_grad()
def rehearse(oracle: Oracle, x: Images) -> None:
    """Raise a UsageError unless each image is answered with one row of finite numbers.

    Guarantees: a client is left as it was.
    """
    if oracle.client is not None:
        _try_encoder(oracle.client, x)
    sent = _tried(lambda: oracle.release(x, source=SeededSource(0, "rehearsal")), x, oracle.client)
    strange = (~sent[0].isfinite()).flatten(1).any(1).sum().item()
    if strange:
        raise UsageError(
            f"the client sends NaN or infinite numbers for {strange:.0f} of {len(x)} images; "
            "look for a division by zero, and at its weights"
        )


def _try_encoder(client: Client, x: Images) -> None:
    """What an encoder answers with, before a mechanism stumbles over it."""
    with evaluating(client), torch.autocast(x.device.type, enabled=False):
        z = _tried(lambda: client.encoder(x), x, client)
    wanted = f"the client must answer {len(x)} images with a tensor of {len(x)} rows"
    if not isinstance(z, Tensor):
        raise UsageError(f"{wanted}, got {type(z).__name__}; let its forward return the features alone")
    if z.ndim < 2 or len(z) != len(x):
        hint = "add .unsqueeze(1)" if z.shape == (len(x),) else "keep the batch as the first dimension"
        raise UsageError(f"{wanted}, got shape {tuple(z.shape)}; {hint}")
    if z.dtype not in SENT_AS_IT_IS:
        raise UsageError(f"the client must answer with float32 numbers, got {z.dtype}; end it with .float()")


def _tried(answer: Callable[[], Answer], x: Images, client: Client | None) -> Answer:
    try:
        return answer()
    except SplitVeilError:
        raise
    except Exception as error:  # whatever the user's own layers raise
        _refuse(error, x, client)


def _refuse(error: Exception, x: Images, client: Client | None) -> NoReturn:
    parameters = () if client is None else client.parameters()
    kinds = {each.dtype for each in parameters if each.is_floating_point()} - {torch.float32}
    hint = f"; images are float32 and its weights {kinds.pop()}: give client.float()" if kinds else ""
    reason = " ".join(str(error).split())[:MOST_WORDS]
    raise UsageError(f"the client fails on a batch of {len(x)} images {tuple(x.shape[1:])}: {reason}{hint}") from error
