"""Gaussian noise on the integers, and how far from exact each way of drawing it is.

    P[Z = z] ∝ exp(−z² / 2σ²),  z ∈ ℤ

Adding Z to an integer total is the Gaussian mechanism but for a stated total-variation distance. Rounding x + N(0,
σ²) for an integer x is post-processing of an exactly μ-GDP release; the rounded normal and Z differ per cell by

    TV ≤ 1 / (24 σ²)       (midpoint rule: |∫_{z−½}^{z+½} f − f(z)| ≤ max|f″|/24, and ∫|f″| < 1/σ²)

and a sampler that decides every Bernoulli wrongly with probability ≤ 2⁻⁵⁰ adds that many times the decisions it
makes. A release of `cells` numbers is then (ε, δ_GDP(ε) + (1 + e^ε)·TV)-DP. With σ near 2³⁷ the first term is below
1e-18 for 10⁵ cells.

Source of the exact algorithm: Canonne, Kamath & Steinke, "The Discrete Gaussian for Differential Privacy" (2020),
Algorithms 1–3.
"""

import math
import os
from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from splitveil.check import UsageError, at_least

Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

SMALLEST_SCALE = 16  # below it the midpoint bound has not been checked
LARGEST_SCALE = 2**48  # |Z| < 2⁶² up to 2¹⁴ standard deviations
DECISION_ERROR = 2.0**-50  # 53-bit uniforms, exp and its argument each right to about 2⁻⁵²
DECISIONS = 8  # expected Bernoulli decisions a draw: (1.58 + 1.58 + 1) / 0.76 = 5.5
BLOCK = 2**18  # candidates at a time
EXPECTED_TRIES = 2.2  # candidates a draw: 1 / (0.63 · 0.76)


class LatticeSampler(ABC):
    """Draws integers from the discrete Gaussian. `is_private` is False when whoever holds a seed could repeat them."""

    name: str
    is_private: bool

    @abstractmethod
    def draw(self, scale: int, count: int) -> Integers:
        """`count` independent integers with parameter σ = `scale`."""

    @abstractmethod
    def sampling_distance(self, cells: int) -> float:
        """Total-variation distance between `cells` draws and exact ones."""

    def distance(self, scale: int, cells: int) -> float:
        """Total-variation distance between `cells` draws and the rounded normal, which is exactly a Gaussian
        release."""
        return cells / (24.0 * scale * scale) + self.sampling_distance(cells)


class OpenDPSampler(LatticeSampler):
    """OpenDP's exact sampler (rational arithmetic, the operating system's generator)."""

    name = "OpenDP discrete Gaussian (exact)"
    is_private = True

    def draw(self, scale: int, count: int) -> Integers:
        import opendp.prelude as dp

        _check(scale)
        dp.enable_features("contrib")
        space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="i64")
        return np.asarray(dp.m.make_gaussian(*space, scale=float(scale))([0] * count), dtype=np.int64)

    def sampling_distance(self, cells: int) -> float:
        return 0.0


class RejectionSampler(LatticeSampler):
    """The same algorithm on whole arrays, its Bernoulli decisions made with 53-bit uniforms."""

    def __init__(self, seed: int | None = None) -> None:
        if seed is not None:
            at_least("seed", seed, 0)
        self.is_private = seed is None
        self.name = (
            "own discrete Gaussian (operating system's generator)"
            if seed is None
            else f"own discrete Gaussian with seed {seed}: NOT PRIVATE"
        )
        self._generator = None if seed is None else np.random.Generator(np.random.PCG64(seed))

    def draw(self, scale: int, count: int) -> Integers:
        _check(scale)
        parts, missing = [], count
        while missing > 0:
            part = self._candidates(scale, min(BLOCK, int(missing * EXPECTED_TRIES) + 64))[:missing]
            parts.append(part)
            missing -= len(part)
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def sampling_distance(self, cells: int) -> float:
        return cells * DECISIONS * DECISION_ERROR

    def _candidates(self, scale: int, tries: int) -> Integers:
        """Those of `tries` proposals from a discrete Laplace of scale t = σ + 1 that the Gaussian accepts."""
        t = scale + 1
        low = self._below(t, tries)
        low = low[self._happens(low / t)]
        size = low + t * self._geometric(len(low))
        negative = (self._words(len(size)) & np.uint64(1)).astype(bool)
        fair = ~(negative & (size == 0))  # zero has one sign
        size, negative = size[fair], negative[fair]
        gap = (size - scale * scale / t) / scale
        kept = self._happens(gap * gap / 2)
        accepted: Integers = np.where(negative, -size, size)[kept]
        return accepted

    def _happens(self, gamma: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Bernoulli(e^{−γ})."""
        uniform = (self._words(len(gamma)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return uniform < np.exp(-gamma)

    def _geometric(self, count: int) -> Integers:
        """How many Bernoulli(1/e) come true before one fails."""
        total = np.zeros(count, dtype=np.int64)
        going = np.arange(count)
        while len(going):
            going = going[self._happens(np.ones(len(going)))]
            total[going] += 1
        return total

    def _below(self, t: int, count: int) -> Integers:
        """Uniform integers in [0, t), without modulo bias."""
        limit = np.uint64(2**63 // t * t)
        words = self._words(count) >> np.uint64(1)
        while bool((late := words >= limit).any()):
            words[late] = self._words(int(late.sum())) >> np.uint64(1)
        return (words % np.uint64(t)).astype(np.int64)

    def _words(self, count: int) -> Words:
        if self._generator is not None:
            return self._generator.integers(0, 2**64, size=count, dtype=np.uint64)
        return np.frombuffer(bytearray(os.urandom(8 * count)), dtype=np.uint64)


def choose_sampler(seed: int | None = None) -> LatticeSampler:
    """OpenDP's where it is installed, our own otherwise; a seed makes noise that repeats and is not private."""
    if seed is not None:
        return RejectionSampler(seed)
    try:
        import opendp.prelude  # noqa: F401
    except ImportError:
        return RejectionSampler()
    return OpenDPSampler()


def delta_slack(distance: float, epsilon: float) -> float:
    """What a total-variation distance from an exactly private release adds to δ."""
    return (1 + math.exp(min(epsilon, 700.0))) * distance


def _check(scale: int) -> None:
    if not SMALLEST_SCALE <= scale <= LARGEST_SCALE:
        raise UsageError(
            f"the noise scale on the lattice must lie in [{SMALLEST_SCALE}, 2^48], got {scale}; "
            "raise epsilon, or lower the heads, shares or ticks that it is shared by"
        )
