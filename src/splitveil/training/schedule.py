"""What the learning rate and the weights of the penalties are, as pure functions of progress.

lr(t)      = base · min(1, (t + 1)/warm-up) · shape(t / T)               t counts steps
weight(e)  = 0 in warm-up, then λ · scale · shape(e)                     exactly λ: nothing rescales it in secret
"""

import math
from dataclasses import dataclass
from typing import Literal

from splitveil import check
from splitveil.regularizers.base import Progress
from splitveil.training.recipe import Recipe


def learning_rate(recipe: Recipe, *, step: int, steps_per_epoch: int) -> float:
    """The learning rate of one step."""
    done = step / (recipe.epochs * steps_per_epoch)
    warmup = recipe.warmup_epochs * steps_per_epoch
    rise = min(1.0, (step + 1) / warmup) if warmup else 1.0
    return recipe.lr * rise * _shape(recipe, done)


def _shape(recipe: Recipe, done: float) -> float:
    match recipe.schedule:
        case "cosine":
            return (1 + math.cos(math.pi * done)) / 2
        case "multistep":
            return float(0.1 ** sum(done >= m for m in recipe.milestones))
        case "constant":
            return 1.0


@dataclass(frozen=True)
class Weight:
    """λ of one penalty over the run.

    shape: constant · ramp and cosine rise from 0 to λ over `ramp_epochs` after the warm-up · constant_step keeps
    weight · lr constant, as the published CEM code does (λ · base_lr / lr).

    Guarantees: 0 during the first `warmup_epochs`; otherwise exactly the formula above.

    >>> from splitveil.regularizers.base import Progress
    >>> at = lambda epoch: Progress(0, epoch, 0, 9, 0.1, 0.1, None)
    >>> [Weight(2.0, warmup_epochs=1, shape="ramp", ramp_epochs=4)(at(e)) for e in range(6)]
    [0.0, 0.5, 1.0, 1.5, 2.0, 2.0]
    """

    value: float
    warmup_epochs: int = 0
    shape: Literal["constant", "ramp", "cosine", "constant_step"] = "constant"
    ramp_epochs: int = 0
    scale: float = 1.0  # the notes' loss scale: multiplies λ, and is shown apart from it

    def __post_init__(self) -> None:
        check.at_least("weight", self.value, 0, hint="use 0 to measure without charging")
        check.at_least("warmup_epochs", self.warmup_epochs, 0)
        check.positive("scale", self.scale)
        if self.shape in ("ramp", "cosine"):
            check.at_least("ramp_epochs", self.ramp_epochs, 1, hint=f"a {self.shape} needs a length")

    def __call__(self, progress: Progress) -> float:
        """λ at this point of the run."""
        since = progress.epoch - self.warmup_epochs
        return 0.0 if since < 0 else self.value * self.scale * self._shape(since, progress)

    def is_full(self, epoch: int) -> bool:
        """Whether warm-up and ramp are over: only then may an epoch's weights be chosen."""
        return epoch >= self.warmup_epochs + max(0, self.ramp_epochs - 1)

    def _shape(self, since: int, progress: Progress) -> float:
        match self.shape:
            case "constant":
                return 1.0
            case "constant_step":
                return progress.base_lr / progress.lr if progress.lr else 0.0
            case "ramp":
                return min(1.0, (since + 1) / self.ramp_epochs)
            case "cosine":
                return (1 - math.cos(math.pi * min(1.0, (since + 1) / self.ramp_epochs))) / 2
