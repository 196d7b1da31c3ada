"""Noise that gives every image a smooth density with a known Fisher information.

    p(u) = (2/w) cos²(πu/w)  on |u| ≤ w/2        ∫ p'²/p = 4π²/w²        Var u = w² (1/12 − 1/(2π²))

Of all densities on an interval this one has the least Fisher information. x + u, coordinates of u independent, has a
density whatever x is, and its information matrix is at most u's: J_P ≼ (4π²/w²) I.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.randomness import NoiseSource
from splitveil.types import Images

HALVINGS = 30  # of the interval: float32 has no more


def prior_information(width: float) -> float:
    """4π²/w²: no coordinate of x + u has more Fisher information."""
    return 4 * math.pi**2 / width**2


def variance(width: float) -> float:
    """Of one coordinate of u."""
    return width**2 * (1 / 12 - 1 / (2 * math.pi**2))


def smoothed(x: Images, width: float, source: NoiseSource) -> Images:
    """x + u, with u drawn from `source`."""
    return x + width * cosine_squared(source.uniform(x.shape, device=x.device))


def cosine_squared(uniform: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """u/w whose distribution function v + ½ + sin(2πv)/(2π) is `uniform`, found by halving."""
    low, high = torch.full_like(uniform, -0.5), torch.full_like(uniform, 0.5)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        below = middle + 0.5 + torch.sin(2 * math.pi * middle) / (2 * math.pi) < uniform
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2
