"""The memory part of surrogates.py: what a surrogate needs at its own peak, at the step's, and between steps.

own     of its fit and charge on the features of a batch, gauges included
step    of the whole training step, over the peak of the step without a surrogate; 0 where the network's own
        backward pass needs more than the surrogate does at its time
kept    parameters, optimizer moments, remembered groups, reservoir, random numbers; on cuda recordings too
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from allocated import MIB, kept_bytes, peak_bytes

from splitveil.regularizers import entropy
from splitveil.regularizers.base import Regularizer

NAMES = (
    "plain",
    "unlabeled",
    "kmeans",
    "mixture",
    "gated_pooling",
    "slots",
    "mixture_prior",
    "hybrid",
    "correlated",
    "staged",
    "published",
    "notes_gated_pooling",
    "notes_slots",
)
DUE = 64  # a step in which gauges and every fit are due
WARM = {"cpu": 1, "cuda": 40}  # steps before measuring; on cuda until recordings are made


def made(name: str) -> Regularizer:
    """The preset of this name; `staged` in the epoch in which it charges the first stage and fits both."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the literal presets warn
        surrogate: Regularizer = entropy.staged(at_epoch=1) if name == "staged" else getattr(entropy, name)()
    return surrogate


def memory_rows(trainer: Callable[..., Any], device: torch.device) -> list[dict[str, Any]]:
    """One row a surrogate and number of classes; `trainer(regularizer, n_classes)` makes the step."""
    rows = []
    for n_classes in (10, 100):
        bare = _footprint(trainer(None, n_classes), device)
        for name in NAMES:
            found = _footprint(trainer(made(name), n_classes), device)
            rows.append(
                {
                    "surrogate": name,
                    "n_classes": n_classes,
                    "mib_own": round(found["own"] / MIB, 2),
                    "mib_step": round((found["step"] - bare["step"]) / MIB, 2),
                    "mib_kept": round((found["kept"] - bare["kept"]) / MIB, 2),
                    "mib_step_without": round(bare["step"] / MIB, 1),
                }
            )
    return rows


def _footprint(side: Any, device: torch.device) -> dict[str, int]:
    for _ in range(2):  # before and after a refit, which changes what is done
        for _ in range(WARM[device.type]):
            side.charge() if device.type == "cpu" else side()
        side.end_epoch()
    side.n = DUE
    side.charge()
    own = peak_bytes(side.charge, device) if side.regularizer is not None else 0
    step = peak_bytes(side, device)
    kept = kept_bytes(side.regularizer, device)
    return {"own": own, "step": step, "kept": kept}
