"""How surprising a gap between what was expected and what was seen is, under Laplace noise.

    surprise = −log 2b p(gap) = |gap|/b        rounded within c = 0.05 b of 0, as Huber does: gap²/(2cb) + c/(2b)

With normal noise of variance s² beside it, from another part of a chain or because what is expected is itself in doubt,
p is the convolution of both, exactly, and needs no rounding but where s is small: c² is added to s².

    q = |gap|/s,   a = s/b         log P± = −q²/2 + log erfcx((a ± q)/√2)
    surprise = log 2 − log (P₋ + P₊)         slope = sign(gap) (P₋ − P₊)/(P₋ + P₊)/b = sign(gap) tanh(½ log P₋/P₊)/b

It tends to |gap|/b as s → 0, and to gap²/(2 (s² + 2b²)) + const as b → 0.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.mechanisms import Chain, Laplace, Mechanism

ROUNDING = 0.05  # c/b: |gap| has no slope at 0, and a descent could not come to rest there
NORMAL = 300.0  # a from which the convolution is normal to float32's precision, and the formula above loses its own

Gap = Float[Tensor, "*shape"]


def laplace_scale(mechanism: Mechanism) -> float:
    """b of its largest Laplace noise, 0 without any. In a chain what else is added counts by its variance.

    >>> laplace_scale(Chain([Laplace(scale=0.1), Laplace(scale=0.3)]))
    0.3
    """
    if isinstance(mechanism, Chain):
        return max(map(laplace_scale, mechanism))
    return mechanism.scale if isinstance(mechanism, Laplace) else 0.0


@torch.no_grad()
def surprise(gap: Gap, scale: float, variance: Tensor | float = 0.0) -> tuple[Gap, Gap]:
    """The surprise at each gap and its slope, no gradient; `variance` is s².

    Guarantees: even in `gap`, its slope odd and within ±1/b; finite for gaps from 0 to 10¹⁵ scales.
    """
    if isinstance(variance, float) and variance <= (ROUNDING * scale) ** 2:
        return _rounded(gap, scale)
    return _convolved(gap, scale, gap.new_full((), (ROUNDING * scale) ** 2) + variance)


def _rounded(gap: Gap, scale: float) -> tuple[Gap, Gap]:
    width = ROUNDING * scale
    inside, far = gap.clamp(-width, width), gap.abs()
    value = torch.where(far < width, gap.square() / (2 * width) + width / 2, far)
    return value / scale, inside / (width * scale)


def _convolved(gap: Gap, scale: float, variance: Tensor) -> tuple[Gap, Gap]:
    far, std = gap.abs(), variance.sqrt()
    a, q = std / scale, far / std
    plus = torch.special.erfcx((a + q) / math.sqrt(2)).log() - q.square() / 2
    near = torch.special.erfcx((a - q).clamp_min(0) / math.sqrt(2)).log() - q.square() / 2
    away = torch.special.erfc((a - q).clamp_max(0) / math.sqrt(2)).log() + a * (a / 2 - q)  # erfcx would overflow
    minus = torch.where(q < a, near, away)
    value = math.log(2) - torch.logaddexp(plus, minus)
    slope = torch.tanh((minus - plus) / 2) / scale
    whole = variance + 2 * scale**2
    flat = far.square() / (2 * whole) + (math.pi / 2 * whole).log() / 2 - math.log(scale)
    is_normal = a > NORMAL
    return torch.where(is_normal, flat, value), gap.sign() * torch.where(is_normal, far / whole, slope)
