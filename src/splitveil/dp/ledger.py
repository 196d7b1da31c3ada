"""What a sequence of releases about the same input costs together.

    μ_total = √(Σ μ_i²)           a Gaussian release:  μ = sensitivity / std

A pure ε-DP release (Laplace) enters as μ = 2 Φ⁻¹(e^ε / (1 + e^ε)). This is sound and tight over all ε-DP mechanisms:
the trade-off curve of ε-DP is two straight lines through (0, 1), (a, a), (1, 0) with a = 1 / (1 + e^ε); the Gaussian
curve is convex, ends in the same two corners and passes (a, a) for exactly this μ, so it lies below both lines. Pure
releases also simply add, so the ledger answers with the better of two valid ε:

    ε(δ) = min{ ε_GDP(√(Σ_all μ²), δ),  ε_GDP(√(Σ_Gaussian μ²), δ) + Σ_pure ε }

Source: Dong, Roth & Su, "Gaussian Differential Privacy" (2019), Proposition 2.5 and Corollary 3.3.
"""

import math

from scipy.special import log_expit, ndtri_exp

from splitveil.dp.calibration import epsilon_of
from splitveil.dp.events import Composed, Event, Gaussian, Laplace, NonPrivate


def pure_mu(epsilon: float) -> float:
    """The smallest μ for which every ε-DP mechanism is μ-GDP.

    >>> round(pure_mu(1.0), 4)
    1.232
    """
    return 2 * abs(float(ndtri_exp(log_expit(-epsilon)))) if epsilon < math.inf else math.inf


def mu_of(event: Event) -> float:
    """The μ of one event; inf when it has no guarantee.

    >>> mu_of(Composed((Gaussian(sensitivity=3.0, std=1.0), Gaussian(sensitivity=4.0, std=1.0))))
    5.0
    """
    ledger = Ledger()
    ledger.record(event)
    return ledger.mu


class Ledger:
    """Adds up releases about one input. Events go in; μ and (ε, δ) come out.

    Guarantees: the order of events does not matter; `NonPrivate` makes every later answer inf; an empty ledger costs 0.
    """

    def __init__(self) -> None:
        self._gaussian_mu2 = 0.0
        self._pure_mu2 = 0.0
        self._pure_epsilon = 0.0

    def record(self, event: Event, *, times: int = 1) -> None:
        """Add `times` releases of this event."""
        match event:
            case NonPrivate():
                self._gaussian_mu2 += math.inf if times else 0.0
            case Gaussian(sensitivity, std):
                self._gaussian_mu2 += times * _ratio(sensitivity, std) ** 2 if times else 0.0
            case Laplace(sensitivity, scale):
                epsilon = _ratio(sensitivity, scale)
                self._pure_mu2 += times * pure_mu(epsilon) ** 2 if times else 0.0
                self._pure_epsilon += times * epsilon if times else 0.0
            case Composed(events, count):
                for part in events:
                    self.record(part, times=times * count)

    @property
    def mu(self) -> float:
        """All releases together are μ-GDP."""
        return math.sqrt(self._gaussian_mu2 + self._pure_mu2)

    def epsilon(self, delta: float) -> float:
        """All releases together are (ε, δ)-DP; inf when any of them was NonPrivate."""
        by_mu = epsilon_of(self.mu, delta)
        by_adding = epsilon_of(math.sqrt(self._gaussian_mu2), delta) + self._pure_epsilon
        return min(by_mu, by_adding)


def _ratio(sensitivity: float, noise: float) -> float:
    if sensitivity == 0:
        return 0.0
    return sensitivity / noise if noise > 0 else math.inf
