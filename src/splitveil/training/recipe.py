"""How a split model is trained: one frozen record, every field a plain value that YAML and JSON can hold."""

from dataclasses import dataclass, field
from typing import Literal

from splitveil import check
from splitveil.data import Augment


@dataclass(frozen=True)
class Recipe:
    """Settings of one training run.

    Guarantees: two runs with equal recipe, data, split and kind of device end in the same weights, also when
    one of them was stopped and resumed.
    """

    epochs: int = 20
    batch_size: int = 128  # over all processes together
    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: float = 0.05
    momentum: float = 0.9  # sgd only
    weight_decay: float = 5e-4
    schedule: Literal["cosine", "multistep", "constant"] = "cosine"
    milestones: tuple[float, ...] = (0.5, 0.75)  # multistep: fractions of the run after which lr is divided by ten
    warmup_epochs: float = 1.0  # lr rises linearly from zero
    label_smoothing: float = 0.0
    clip_norm: float | None = None  # of the whole gradient
    augment: Augment = field(default_factory=Augment)
    freeze: Literal["nothing", "encoder", "head"] = "nothing"
    precision: Literal["float32", "bf16", "float64"] = "float32"
    channels_last: bool = False
    compile: bool = False
    seed: int = 0
    time_budget: float | None = None  # seconds; the run then ends cleanly with what it has

    def __post_init__(self) -> None:
        check.at_least("epochs", self.epochs, 1)
        check.at_least("batch_size", self.batch_size, 1)
        check.positive("lr", self.lr)
        check.fraction("momentum", self.momentum)
        check.at_least("weight_decay", self.weight_decay, 0)
        check.at_least("warmup_epochs", self.warmup_epochs, 0)
        check.fraction("label_smoothing", self.label_smoothing)
        check.at_least("seed", self.seed, 0)
        if self.clip_norm is not None:
            check.positive("clip_norm", self.clip_norm, hint="leave it out for no clipping")
        if self.time_budget is not None:
            check.positive("time_budget", self.time_budget, hint="leave it out for no limit")
        if any(not 0 < m < 1 for m in self.milestones):
            raise check.UsageError(f"milestones are fractions of the run between 0 and 1, got {list(self.milestones)}")
