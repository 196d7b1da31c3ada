"""How much noise an (ε, δ) asks for, and what a μ-GDP guarantee is worth in (ε, δ): the analytic Gaussian mechanism.

    δ(μ, ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)              μ = sensitivity / σ

With s = ε/μ − μ/2 and t = ε/μ + μ/2, t² − s² = 2ε, so e^ε and the two tails share one factor and nothing overflows:

    δ(μ, ε) = ½ e^(−s²/2) [erfcx(s/√2) − erfcx(t/√2)]        erfcx(u) = e^(u²) erfc(u)

Every search ends on the safe side of the root: μ and ε are never better than the guarantee allows.

Source: Balle & Wang, "Improving the Gaussian Mechanism for Differential Privacy" (2018), Theorem 8; Dong, Roth & Su,
"Gaussian Differential Privacy" (2019), Corollary 2.13.
"""

import math
from collections.abc import Callable

from scipy.special import erfc, erfcx

from splitveil.check import UsageError, at_least, positive

ROOT_HALF = math.sqrt(0.5)
HALVINGS = 200  # bisection stops earlier, when two neighboring floats are reached
LARGEST_MU = 1e150  # its square is still a float
SMALL_MU = 1e-5  # below it two nearly equal tails are subtracted; above it the midpoint rule is worse
FAR = 1e4  # standard deviations beyond which 1 − m R(m) = 1/m² to 8 digits (R is Mills' ratio)


def delta_of(mu: float, epsilon: float) -> float:
    """The smallest δ for which μ-GDP implies (ε, δ)-DP.

    Guarantees: in [0, 1]; grows with μ, falls with ε.

    >>> round(delta_of(mu=1.0, epsilon=1.0), 6)
    0.126937
    """
    at_least("mu", mu, 0.0)
    at_least("epsilon", epsilon, 0.0)
    return math.exp(_log_delta(mu, epsilon))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest μ for which μ-GDP implies (ε, δ)-DP.

    >>> round(1 / gaussian_mu(epsilon=1.0, delta=1e-6), 2)
    4.22
    """
    at_least("epsilon", epsilon, 0.0)
    _proper(delta)
    goal = math.log(delta)
    high = 1.0
    while _log_delta(high, epsilon) < goal:
        high *= 2
    return _bisect(lambda mu: _log_delta(mu, epsilon) <= goal, yes=0.0, no=high)


def gaussian_std(epsilon: float, delta: float, sensitivity: float) -> float:
    """The smallest noise σ for which a Gaussian release of this l2 sensitivity is (ε, δ)-DP.

    >>> round(gaussian_std(epsilon=2.0, delta=1e-6, sensitivity=2.0), 3)
    4.461
    """
    positive("sensitivity", sensitivity)
    return sensitivity / gaussian_mu(epsilon, delta)


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest ε for which μ-GDP implies (ε, δ)-DP; inf for infinite μ.

    >>> round(epsilon_of(mu=gaussian_mu(epsilon=1.0, delta=1e-6), delta=1e-6), 9)
    1.0
    """
    _proper(delta)
    if math.isnan(mu) or mu < 0:
        raise UsageError(f"mu must be ≥ 0, got {mu}")
    if mu > LARGEST_MU:
        return math.inf
    goal = math.log(delta)
    if _log_delta(mu, 0.0) <= goal:
        return 0.0
    high = 1.0
    while _log_delta(mu, high) > goal:
        high *= 2
    return _bisect(lambda epsilon: _log_delta(mu, epsilon) <= goal, yes=high, no=0.0)


def _log_delta(mu: float, epsilon: float) -> float:
    """log δ(μ, ε), exact in the tails where δ itself is no longer a float."""
    if mu == 0:
        return -math.inf
    if mu < SMALL_MU:
        return _log_delta_of_small(mu, epsilon)
    s = epsilon / mu - mu / 2
    t = epsilon / mu + mu / 2
    if s > 0:
        gap = float(erfcx(s * ROOT_HALF) - erfcx(t * ROOT_HALF)) / 2
        return math.log(gap) - s * s / 2 if gap > 0 else -math.inf
    head = float(erfc(s * ROOT_HALF)) / 2  # s ≤ 0: no tail, and erfcx(s) would overflow
    tail = math.exp(-s * s / 2) * float(erfcx(t * ROOT_HALF)) / 2
    return math.log(head - tail) if head > tail else -math.inf


def _log_delta_of_small(mu: float, epsilon: float) -> float:
    """The same where erfcx(s/√2) and erfcx(t/√2) cancel: their difference is μ times the slope halfway, to O(μ²)."""
    middle = epsilon / mu
    mills = math.sqrt(math.pi / 2) * float(erfcx(middle * ROOT_HALF))
    slope = 1 - middle * mills if middle < FAR else 1 / middle**2
    return math.log(mu) + math.log(slope) - (middle - mu / 2) ** 2 / 2 - math.log(2 * math.pi) / 2


def _bisect(holds: Callable[[float], bool], *, yes: float, no: float) -> float:
    """The point nearest `no` at which `holds` was still seen to be true."""
    for _ in range(HALVINGS):
        middle = (yes + no) / 2
        if middle in (yes, no):
            break
        yes, no = (middle, no) if holds(middle) else (yes, middle)
    return yes


def _proper(delta: float) -> None:
    if not 0 < delta < 1:
        raise UsageError(f"delta must lie in (0, 1), got {delta}; a common choice is 1e-6")
