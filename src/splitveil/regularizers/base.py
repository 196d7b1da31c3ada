"""What training charges the encoder for, beside the task.

    loss = cross_entropy(head(z_sent), y) + Σ_i weight_i(progress) · penalty_i(step)

A regularizer owns its parameters and how they are fitted. `forward` is charged to the encoder and must leave no
gradient in the regularizer's own parameters; `fit` sees detached tensors and moves those parameters.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, nn

from splitveil.types import Features, Images, Labels, Logits, Sent


@dataclass(frozen=True)
class Progress:
    """Where a run stands."""

    seed: int
    epoch: int  # from 0
    step: int  # from 0, over the whole run
    n_epochs: int
    lr: float
    base_lr: float
    selection_accuracy: float | None  # of the last epoch that ended, None before


@dataclass(frozen=True)
class Step:
    """One training step as a regularizer sees it."""

    x: Images
    z: Features
    z_sent: Sent
    y: Labels
    logits: Logits
    noise_std: float
    n_classes: int
    progress: Progress


@dataclass(frozen=True)
class Penalty:
    """What the encoder is charged, and what is shown of how it came about.

    Gauges are detached and never read inside a step, so each is a tensor of its own that nothing changes later.
    """

    loss: Tensor
    gauges: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Usual:
    """How a source uses its penalty: what a term of a config takes where it names nothing else.

    `weight` is λ (None: the source names none), `scale` its loss scale, `clip_norm` and `gradient_decay` what is done
    to the penalty's gradient. Building a term by hand uses none of it unless asked.
    """

    weight: float | None = None
    warmup_epochs: int = 0
    shape: Literal["constant", "ramp", "cosine", "constant_step"] = "constant"
    ramp_epochs: int = 0
    scale: float = 1.0
    clip_norm: float | None = None
    gradient_decay: float = 0.0


class Regularizer(nn.Module, ABC):
    """Something the encoder is charged for. Owns its parameters and how they are fitted.

    Guarantees expected of every implementation: `forward` leaves no gradient in the regularizer's own parameters; its
    `state_dict` (parameters, optimizer moments, reservoirs, random state, as tensors) restores it exactly.
    """

    usual: Usual = Usual()  # warm-up, loss scale and so on of the source it follows; ours have none of their own

    def bind(self, client: nn.Module, server: nn.Module) -> None:
        """Meet the networks before training, for regularizers that touch weights. Default: nothing."""

    @abstractmethod
    def forward(self, step: Step) -> Penalty:
        """The penalty of this step, differentiable in `step.z` (and `z_sent`, `logits`)."""

    def fit(self, step: Step) -> None:
        """Move own parameters one step on detached tensors. Default: nothing to fit."""

    def end_epoch(self, progress: Progress) -> None:
        """Refit from what the epoch showed; `progress` holds this epoch's selection accuracy. Default: nothing."""

    def broken_steps(self) -> Tensor | None:
        """How many steps had no finite penalty so far, on the device; None where that is not counted."""
        return None
