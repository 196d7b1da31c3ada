"""Running totals over T ticks under one budget: A = B·C, publish C x + noise, read totals off as B (C x + noise).

    A = lower triangle of ones          noise multiplier at tick t = ‖B_t‖ · max_τ ‖C_·τ‖

    √-Toeplitz     C = A^{1/2}: c_0 = 1, c_k = c_{k−1} (2k − 1) / 2k       1.9, 2.4, 3.3  at T = 16, 64, 1024
    tree           C = dyadic blocks, B = the blocks of t in binary        4.5, 6.5, 10.5
    independent    C = 1, B = A                                            4,   8,   32

C is held in fixed point (2⁻¹⁶) so that C x is computed exactly on integers; B is the exact inverse of that C, so no
total is biased by the rounding. Entries of C are never negative: the columns of an insert and of its delete have inner
product ≥ 0, and a unit that does both moves C x by at most √2 of what one of them does.

Source: Fichtenberger, Henzinger & Upadhyay, "Constant Matters" (2022); Henzinger, Upadhyay & Upadhyay, "Almost Tight
Error Bounds on Differentially Private Continual Counting" (2023).
"""

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from splitveil.check import UsageError, nearest

FIXED_BITS = 16
ONE = 1 << FIXED_BITS
LONGEST_HORIZON = 65_536

Weights = NDArray[np.int64]
Reals = NDArray[np.float64]


class Factorization(ABC):
    """One way to factor the triangle of ones for ticks 0 … horizon − 1.

    Guarantees expected of every implementation: B·C = A to rounding of B; entries of C are ≥ 0; `column_square`
    bounds Σ C² of every column (in units of 2⁻³²).
    """

    name: str

    def __init__(self, horizon: int) -> None:
        if not 1 <= horizon <= LONGEST_HORIZON:
            raise UsageError(f"horizon must lie in [1, {LONGEST_HORIZON}] ticks, got {horizon}")
        self.horizon = horizon

    @abstractmethod
    def encode(self, tick: int) -> list[Weights]:
        """The rows of C published at this tick, each over ticks 0 … tick, in units of 2⁻¹⁶."""

    @abstractmethod
    def decode(self, tick: int) -> Reals:
        """The row of B for this tick, over everything published so far."""

    @property
    @abstractmethod
    def column_square(self) -> int:
        """max_τ Σ_rows C², in units of 2⁻³²."""

    @property
    @abstractmethod
    def n_rows(self) -> int:
        """Rows of C: how many totals are published over the whole horizon."""

    def multiplier(self, tick: int) -> float:
        """Noise of the total at this tick over that of a single release of the same guarantee."""
        return float(np.linalg.norm(self.decode(tick))) * float(np.sqrt(self.column_square)) / ONE


class SquareRootToeplitz(Factorization):
    """C = A^{1/2}: within a constant of the best possible for every T."""

    name = "sqrt_toeplitz"

    def __init__(self, horizon: int) -> None:
        super().__init__(horizon)
        k = np.arange(1, horizon)
        root = np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])
        self._c = np.floor(root * ONE).astype(np.int64)
        self._b = _running_inverse(self._c / ONE)

    def encode(self, tick: int) -> list[Weights]:
        return [self._c[: tick + 1][::-1]]

    def decode(self, tick: int) -> Reals:
        return self._b[: tick + 1][::-1]

    @property
    def column_square(self) -> int:
        return sum(int(c) * int(c) for c in self._c)

    @property
    def n_rows(self) -> int:
        return self.horizon


class BinaryTree(Factorization):
    """Every dyadic block of ticks is published when it closes; a total is the sum of at most log₂ T blocks."""

    name = "tree"

    def encode(self, tick: int) -> list[Weights]:
        return [_last(tick + 1, 1 << level) for level in range(_closing(tick + 1))]

    def decode(self, tick: int) -> Reals:
        out = np.zeros(self._published(tick + 1))
        end = tick + 1
        while end:
            level = _closing(end) - 1  # the largest block that closes here
            out[self._published(end - 1) + level] = 1.0
            end -= 1 << level
        return out

    @staticmethod
    def _published(ticks: int) -> int:
        """Blocks closed in the first `ticks` ticks: 2·ticks − popcount."""
        return 2 * ticks - ticks.bit_count()

    @property
    def column_square(self) -> int:
        return self.horizon.bit_length() * ONE * ONE  # the first tick is in a block of every level

    @property
    def n_rows(self) -> int:
        return self._published(self.horizon)


class Independent(Factorization):
    """Every tick is published on its own and totals add the noise of all ticks so far."""

    name = "independent"

    def encode(self, tick: int) -> list[Weights]:
        return [_last(tick + 1, 1)]

    def decode(self, tick: int) -> Reals:
        return np.ones(tick + 1)

    @property
    def column_square(self) -> int:
        return ONE * ONE

    @property
    def n_rows(self) -> int:
        return self.horizon


_BY_NAME: dict[str, type[Factorization]] = {kind.name: kind for kind in (SquareRootToeplitz, BinaryTree, Independent)}


def factorization(name: str, horizon: int) -> Factorization:
    """One of "sqrt_toeplitz", "tree", "independent" for `horizon` ticks."""
    if name not in _BY_NAME:
        names = tuple(_BY_NAME)
        raise UsageError(
            f"factorization {name!r} is not known{nearest(name, names)}; choose one of: {', '.join(names)}"
        )
    return _BY_NAME[name](horizon)


def _running_inverse(c: Reals) -> Reals:
    """b with Σ_{i ≤ k} b_i c_{k−i} = 1 for every k: the Toeplitz B of B·C = A."""
    b = np.zeros(len(c))
    for k in range(len(c)):
        b[k] = (1.0 - b[:k] @ c[k:0:-1]) / c[0]
    return b


def _last(ticks: int, count: int) -> Weights:
    weights = np.zeros(ticks, dtype=np.int64)
    weights[ticks - count :] = ONE
    return weights


def _closing(end: int) -> int:
    """How many dyadic blocks close after `end` ticks: trailing zero bits + 1."""
    return (end & -end).bit_length()
