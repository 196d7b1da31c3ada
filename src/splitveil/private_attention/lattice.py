"""Rows as integers: floating point is part of the guarantee, so the sums are exact and every row is mapped on its own.

    unit vector   x̃ = trunc(2^b x / R) / 2^b, shortened to ‖x̃‖ ≤ 1 by its exact integer norm
    features      φ_int = trunc(2²⁰ φ / B)                    Σ φ_int² ≤ 2⁴⁰             enforced on the integers
    values        u_int = [trunc(2¹⁵ v / U); c_int]           Σ v_int² ≤ 2³⁰ − c_int²    U² = R_w² + c²
    total         Σ_i φ_int,i u_int,iᵀ                        below 2⁵³ in float64, then summed in int64

A rounded float sum depends on the order of its terms, so that adding one row could move the others' contribution by
an ulp and the true sensitivity would exceed the proved one (Mironov 2012; Casacuberta et al. 2022). Here each step is
either elementwise and correctly rounded (IEEE 754: + − × ÷ √ trunc), or a sum of integers that float64 holds exactly.
So a row's integers depend on that row alone, and totals are the same for every order, batch size and number of
threads.
"""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

FEATURE_BITS = 20  # 2⁻²⁰ of B: features of a row of thousands of coordinates keep four digits
VALUE_BITS = 15  # with FEATURE_BITS: 2¹⁷ rows fit one exact float64 product, 2²⁷ rows one int64 total
FEATURE_CAP = 1 << 2 * FEATURE_BITS
VALUE_CAP = 1 << 2 * VALUE_BITS
EXACT_BITS = 52  # integers up to 2⁵³ are floats; one bit of headroom
FINEST_BITS = 22  # of a key or value coordinate before features: finer than float32
MOST_ROWS = 2**27  # in one memory, so that |total| < 2⁶² in int64
EXP_SQUARINGS = 8  # |x| ≤ 64 becomes ≤ 1/4, where degree 12 is exact to 1e-16
EXP_DEGREE = 12
SHORTER = 1 - 2.0**-20  # an overlong integer row is shortened to strictly below its cap


def coordinate_bits(d: int) -> int:
    """Bits b of a fixed-point coordinate, so that the sum of d squares stays an exact float64.

    >>> coordinate_bits(64), coordinate_bits(4096)
    (22, 20)
    """
    return min(FINEST_BITS, (EXACT_BITS - math.ceil(math.log2(max(d, 1)))) // 2)


def to_unit_ball(
    rows: Float[Tensor, "row dim"], radius: float, center: Float[Tensor, "dim"] | None = None
) -> Float[Tensor, "row dim"]:
    """(rows − center) / radius in fixed point, each row shortened to norm ≤ 1 if it is longer; float64.

    Guarantees: norm ≤ 1 + 2⁻⁵⁰ for any input; a row with a NaN or infinity becomes zero; each row depends on itself
    alone.

    >>> to_unit_ball(torch.tensor([[3.0, 4.0], [float("nan"), 1.0]]), 10.0).round(decimals=4).tolist()
    [[0.3, 0.4], [0.0, 0.0]]
    """
    x = rows.double() if center is None else rows.double() - center
    x = torch.where(torch.isfinite(x).all(-1, keepdim=True), x, 0.0)
    x = x / x.abs().amax(-1, keepdim=True).clamp_min(radius)  # coordinates in [−1, 1]; huge rows keep their direction
    one = 2.0 ** coordinate_bits(rows.shape[-1])
    grid = truncate_(x * one)
    square = grid.square().sum(-1, keepdim=True)
    shrink = torch.where(square > one * one, one / square.sqrt(), 1.0)
    return grid * shrink / one


def enforce_cap(
    ints: Float[Tensor, "coordinate row"], cap: int, spare: Float[Tensor, "coordinate row"] | None = None
) -> Float[Tensor, "coordinate row"]:
    """Columns of integers with Σ² > cap, shortened below it and truncated again. Writes into `ints` and `spare`.

    Guarantees: Σ² ≤ cap for every column; columns already within it are unchanged.
    """
    square = torch.mul(ints, ints, out=spare).sum(0)
    long = square > cap
    if not bool(long.any()):
        return ints
    shorter = torch.trunc(ints[:, long] * (SHORTER * math.sqrt(cap) / square[long].sqrt()))
    ints[:, long] = torch.where(shorter.square().sum(0) <= cap, shorter, 0.0)
    return ints


def value_integers(
    unit_values: Float[Tensor, "row dv"], value_norm: float, count: float
) -> Float[Tensor, "row column"]:
    """u_int = [trunc(2¹⁵ v / U); c_int] with U² = value_norm² + count², for values already divided by value_norm.

    Guarantees: Σ u_int² ≤ 2³⁰ for every row.
    """
    scale = 2**VALUE_BITS * value_norm / math.hypot(value_norm, count)
    c_int = count_integer(value_norm, count)
    v_int = enforce_cap(truncate_((unit_values * scale).T.contiguous()), VALUE_CAP - c_int**2)
    return torch.cat([v_int, torch.full_like(v_int[:1], c_int)]).T.contiguous()


def count_integer(value_norm: float, count: float) -> int:
    """c_int = trunc(2¹⁵ c / U).

    >>> count_integer(1.0, 1.0)
    23170
    """
    return math.floor((1 << VALUE_BITS) * count / math.hypot(value_norm, count))


def truncate_(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Drop the fractions in place. On the CPU by numpy, whose trunc uses vector instructions where torch's does not."""
    if x.device.type != "cpu":
        return x.trunc_()
    np.trunc(x.numpy(), out=x.numpy())
    return x


def steady_exp(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """eˣ by Horner's rule and repeated squaring: elementwise products and sums only, so equal inputs give equal bits
    wherever they lie in a tensor (vectorized and scalar library exps differ in the last bit).

    >>> bool((steady_exp(torch.tensor([-3.0, 0.0, 2.5], dtype=torch.float64)).log().round(decimals=12)
    ...       == torch.tensor([-3.0, 0.0, 2.5])).all())
    True
    """
    small = x / 2.0**EXP_SQUARINGS
    value = torch.ones_like(small)
    for j in range(EXP_DEGREE, 0, -1):
        value = value * small / j + 1.0
    for _ in range(EXP_SQUARINGS):
        value = value * value
    return value
