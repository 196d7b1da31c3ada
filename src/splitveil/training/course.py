"""Everything that changes while a run goes on, and how it is put into a checkpoint and taken out again."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from splitveil.check import RunError
from splitveil.training.checkpoint import Checkpoint, optimizer_tensors, restore_optimizer
from splitveil.training.gauges import Gauges
from splitveil.training.step import Stepper


@dataclass
class Course:
    """Where a run stands and what it has seen; networks and optimizer apart."""

    epoch: int = 0
    batch: int = 0  # within the epoch
    seconds: float = 0.0  # of earlier sittings
    best_epoch: int = -1
    best_accuracy: float = -1.0
    best_is_full: bool = False  # chosen from an epoch in which every penalty had its full weight
    history: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)
    totals: Tensor = field(default_factory=lambda: torch.zeros(3, dtype=torch.float64))  # loss·n, correct, n
    gauges: Gauges = field(default_factory=Gauges)


def pack(course: Course, stepper: Stepper, *, seconds: float) -> Checkpoint:
    """All that a run needs to go on."""
    parts: dict[str, dict[str, Tensor]] = {
        "model": stepper.joint.state_dict(),
        "best": course.best,
        "optimizer": optimizer_tensors(stepper.optimizer),
        "gauges": course.gauges.tensors(),
        "totals": {"epoch": course.totals},
    }
    parts |= {f"term/{term.name}": term.regularizer.state_dict() for term in stepper.terms}
    parts |= {f"momentum/{name}": {str(i): g for i, g in enumerate(own)} for name, own in stepper.momenta.items()}
    state = {
        "epoch": course.epoch,
        "batch": course.batch,
        "best_epoch": course.best_epoch,
        "best_accuracy": course.best_accuracy,
        "best_is_full": course.best_is_full,
        "history": course.history,
        "seconds": seconds,
    }
    return Checkpoint({f"{part}/{k}": v for part, tensors in parts.items() for k, v in tensors.items()}, state)


def unpack(found: Checkpoint, course: Course, stepper: Stepper) -> None:
    """Put a checkpoint back in place."""
    try:
        stepper.joint.load_state_dict(found.part("model"))
        for term in stepper.terms:
            term.regularizer.load_state_dict(found.part(f"term/{term.name}"))
    except RuntimeError as error:
        raise RunError(f"the checkpoint does not fit this config: {' '.join(str(error).split())[:200]}") from None
    restore_optimizer(stepper.optimizer, found.part("optimizer"))
    device, state = course.totals.device, found.state
    for term in stepper.terms:
        if kept := found.part(f"momentum/{term.name}"):
            stepper.momenta[term.name] = [kept[str(i)].to(device) for i in range(len(kept))]
    course.epoch, course.batch, course.seconds = state["epoch"], state["batch"], state["seconds"]
    course.best_epoch, course.best_accuracy = state["best_epoch"], state["best_accuracy"]
    course.best_is_full = state["best_is_full"]
    course.history, course.best = list(state["history"]), {k: v.to(device) for k, v in found.part("best").items()}
    course.totals = found.part("totals")["epoch"].to(device)
    course.gauges.restore(found.part("gauges"), device)
