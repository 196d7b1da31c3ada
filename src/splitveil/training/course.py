"""Everything that changes while a run goes on, and how it is put into a checkpoint and taken out again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from splitveil.check import RunError
from splitveil.training.checkpoint import Checkpoint, optimizer_tensors, restore_optimizer
from splitveil.training.device import Place
from splitveil.training.gauges import Gauges
from splitveil.training.step import Stepper


@dataclass
class Course:
    """Where a run stands and what it has seen; networks and optimizer apart."""

    n_ranks: int = 1
    epoch: int = 0
    batch: int = 0  # within the epoch
    seconds: float = 0.0  # of earlier sittings
    best_epoch: int = -1
    best_accuracy: float = -1.0
    best_is_full: bool = False  # chosen from an epoch in which every penalty had its full weight
    history: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)
    task: Gauges = field(init=False)  # loss and n_correct of the epoch so far
    gauges: Gauges = field(init=False)  # what the penalties showed in the epoch so far

    def __post_init__(self) -> None:
        self._clear()

    def next_epoch(self) -> None:
        """Turn the page."""
        self.epoch, self.batch = self.epoch + 1, 0
        self._clear()

    def _clear(self) -> None:
        self.task, self.gauges = Gauges(keeps_nan=True), Gauges(share=1 / self.n_ranks)


def pack(course: Course, stepper: Stepper, *, seconds: float, data: str, settings: Mapping[str, Any]) -> Checkpoint:
    """All that a run needs to go on. With several processes all must call this: gauges are summed over them."""
    place = stepper.place
    parts: dict[str, dict[str, Tensor]] = {
        "model": stepper.joint.state_dict(),
        "best": course.best,
        "optimizer": optimizer_tensors(stepper.optimizer),
    }
    for name, gauges in (("task", course.task), ("gauges", course.gauges)):
        parts[name] = (gauges if place.n_ranks == 1 else gauges.everywhere(place.total)).tensors()
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
        "data": data,
        "settings": settings,
    }
    return Checkpoint({f"{part}/{k}": v for part, tensors in parts.items() for k, v in tensors.items()}, state)


def unpack(found: Checkpoint, course: Course, stepper: Stepper, *, data: str) -> None:
    """Put a checkpoint back in place."""
    if found.state.get("data") != data:
        raise RunError("the images are not those the run began with (hash differs); put them back, or start a new run")
    try:
        stepper.joint.load_state_dict(found.part("model"))
        for term in stepper.terms:
            term.regularizer.load_state_dict(found.part(f"term/{term.name}"))
        restore_optimizer(stepper.optimizer, found.part("optimizer"))
    except (RuntimeError, ValueError) as error:
        raise RunError(f"the checkpoint does not fit this config: {' '.join(str(error).split())[:200]}") from None
    place, state = stepper.place, found.state
    for term in stepper.terms:
        if kept := found.part(f"momentum/{term.name}"):
            stepper.momenta[term.name] = [kept[str(i)].to(place.device) for i in range(len(kept))]
    course.epoch, course.batch, course.seconds = state["epoch"], state["batch"], state["seconds"]
    course.best_epoch, course.best_accuracy = state["best_epoch"], state["best_accuracy"]
    course.best_is_full, course.history = state["best_is_full"], list(state["history"])
    course.best = {name: tensor.to(place.device) for name, tensor in found.part("best").items()}
    course.task.restore(found.part("task"), place.device, is_mine=place.is_first)
    course.gauges.restore(found.part("gauges"), place.device, is_mine=place.is_first)


def refuse_strangers(course: Course, place: Place) -> None:
    """Several processes must go on from the same step: on many machines the run directory is a shared one."""
    at = course.epoch * 10**9 + course.batch
    if place.highest(at) != -place.highest(-at):
        raise RunError("the processes found different checkpoints; a run of many must be on a disk that all share")
