"""Features of any shape as member vectors, with the noise they then carry.

flatten   [B, …] → [B, D]                                  σ² as it is
pool      [B, C, H, W] → [B, C·s·s], mean over windows     σ² / (window area): averaging averages the noise too
tokens    [B, T, d] → [B·T, d], [B, C, H, W] → [B·H·W, C]  every token is a member of its image's class
"""

from dataclasses import dataclass
from typing import Literal, final

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from splitveil.check import UsageError, at_least
from splitveil.types import Features


@final
@dataclass(frozen=True)
class Vectors:
    """Member vectors, their labels, and σ² of one coordinate."""

    z: Float[Tensor, "member dim"]
    y: Int[Tensor, "member"]
    noise_var: float


@final
@dataclass(frozen=True)
class ToVectors:
    """How features become vectors; `side` is the height and width that pooling leaves."""

    how: Literal["flatten", "pool", "tokens"] = "flatten"
    side: int = 1

    def __post_init__(self) -> None:
        at_least("side", self.side, 1)

    def __call__(self, z: Features, y: Int[Tensor, "batch"], *, noise_std: float) -> Vectors:
        """Differentiable in z."""
        var = noise_std**2
        if self.how == "flatten":
            return Vectors(z.flatten(1), y, var)
        if self.how == "pool":
            return Vectors(*_pool(z, self.side, var, y))
        if z.ndim not in (3, 4):
            raise UsageError(
                f"tokens need features [batch, token, dim] or [batch, channel, height, width], got {z.ndim} axes"
            )
        tokens = z if z.ndim == 3 else z.flatten(2).mT
        return Vectors(tokens.flatten(0, 1), y.repeat_interleave(tokens.shape[1]), var)


def _pool(z: Tensor, side: int, var: float, y: Tensor) -> tuple[Tensor, Tensor, float]:
    if z.ndim != 4:
        raise UsageError(
            f"pooling needs features [batch, channel, height, width], got {z.ndim} axes; use flatten or tokens"
        )
    height, width = z.shape[2:]
    if height % side or width % side:
        raise UsageError(f"pooling to {side} × {side} needs sides that it divides, got {height} × {width}")
    area = (height // side) * (width // side)
    return F.adaptive_avg_pool2d(z, side).flatten(1), y, var / area
