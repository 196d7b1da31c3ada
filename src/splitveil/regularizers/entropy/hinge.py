"""From a variance to what is charged for it.

    information   ½ log(1 + v/σ²)                                   nats a dimension; the form that is a bound
    linear        v
    log           max(0, log(v + γ) − log(τ + γ))                   silent below τ
    softplus      1/β' · log(1 + exp(β'(log(v + γ) − log(τ + γ) − m)))

    pool="after_log"    the curve in every dimension, then the mean over dimensions
    pool="before_log"   the mean variance over dimensions (trace / D) against the same per-dimension τ, then the curve
    pool="class"        the same after averaging over the groups of a class too: v̂ = Σ_k π_k v_k, as note 002 writes it

Dimension gates multiply what is averaged. τ is the threshold of `threshold.py`.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from splitveil.check import positive

Pool = Literal["after_log", "before_log", "class"]
LINEAR = 50.0  # β'x from which softplus is taken as a line: e⁻⁵⁰ is below any precision, torch's own 20 is not
FLOOR = 1e-6  # γ of the notes' worked example; keeps log v finite where a group has no spread


@dataclass(frozen=True)
class Hinge(ABC):
    """A non-decreasing curve of the variance."""

    pool: Pool = "after_log"

    @abstractmethod
    def curve(self, var: Tensor, *, noise_var: float, tau: Tensor | float) -> Tensor:
        """The charge for each variance."""

    def charge(
        self,
        var: Float[Tensor, "*group dim"],
        *,
        noise_var: float,
        tau: Tensor | float,
        gate: Float[Tensor, "*group dim"] | None = None,
    ) -> Float[Tensor, "*group"]:
        """The charge of each group: pooled over dimensions before or after the curve."""
        if self.pool != "after_log":
            pooled = (var if gate is None else gate * var).mean(-1)
            return self.curve(pooled, noise_var=noise_var, tau=tau)
        each = self.curve(var, noise_var=noise_var, tau=tau)
        return (each if gate is None else gate * each).mean(-1)


@final
@dataclass(frozen=True)
class Information(Hinge):
    """½ log(1 + v/σ²): dim times the charge of a group is its share of the bound S, in nats."""

    def curve(self, var: Tensor, *, noise_var: float, tau: Tensor | float) -> Tensor:
        return 0.5 * torch.log1p(var / noise_var)


@final
@dataclass(frozen=True)
class Linear(Hinge):
    """The variance itself."""

    def curve(self, var: Tensor, *, noise_var: float, tau: Tensor | float) -> Tensor:
        return var


@final
@dataclass(frozen=True)
class Log(Hinge):
    """max(0, log(v + γ) − log(τ + γ))."""

    floor: float = FLOOR

    def __post_init__(self) -> None:
        positive("floor", self.floor)

    def curve(self, var: Tensor, *, noise_var: float, tau: Tensor | float) -> Tensor:
        return torch.relu(_log_ratio(var, tau, self.floor))


@final
@dataclass(frozen=True)
class Softplus(Hinge):
    """A smooth hinge on log v, `margin` above log τ, as sharp as `sharpness`."""

    sharpness: float = 5.0
    margin: float = 0.0
    floor: float = FLOOR

    def __post_init__(self) -> None:
        positive("sharpness", self.sharpness)
        positive("floor", self.floor)

    def curve(self, var: Tensor, *, noise_var: float, tau: Tensor | float) -> Tensor:
        rise = _log_ratio(var, tau, self.floor) - self.margin
        return F.softplus(rise, beta=self.sharpness, threshold=LINEAR)


def _log_ratio(var: Tensor, tau: Tensor | float, floor: float) -> Tensor:
    level = (tau + floor).log() if isinstance(tau, Tensor) else math.log(tau + floor)
    return torch.log(var + floor) - level
