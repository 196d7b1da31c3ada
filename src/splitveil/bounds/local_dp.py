"""What nobody can tell apart: local differential privacy, where any two inputs are neighbors.

    clip to ‖z‖ ≤ C   ⇒   sensitivity 2C   ⇒   T releases are μ-GDP with μ = 2C√T/σ
    advantage = |P(says A | A) − P(says A | B)| ≤ 2Φ(μ/2) − 1                (ε, δ) by the ledger of `splitveil.dp`

It holds for every pair of inputs, every encoder and every observer. Without a clip before the noise two inputs may lie
any distance apart, and there is no such bound.
"""

import math

from splitveil.bounds.base import Bound, Kind, Side
from splitveil.check import UsageError, at_least
from splitveil.dp import Ledger, NonPrivate
from splitveil.mechanisms import Mechanism

DELTA = 1e-6
HOLDS_IF = (
    "real arithmetic: floating-point noise is not on a lattice",
    "nobody can guess the noise",
)


def local_dp(mechanism: Mechanism, *, releases: int = 1, delta: float = DELTA) -> tuple[Bound, ...]:
    """The advantage in telling any two inputs apart, and ε at `delta`, for `releases` of one input."""
    at_least("releases", releases, 1)
    reason = obstacle(mechanism)
    if reason is not None:
        raise UsageError(reason)
    ledger = Ledger()
    ledger.record(mechanism.event(), times=releases)
    found = {
        "advantage in telling two inputs apart": advantage(ledger.mu),
        f"ε at δ = {delta:g}": ledger.epsilon(delta),
    }
    return tuple(
        Bound("local DP", quantity, value, Side.AT_MOST, Kind.PROVED, HOLDS_IF, releases=releases)
        for quantity, value in found.items()
    )


def advantage(mu: float) -> float:
    """2Φ(μ/2) − 1: the largest total variation between two inputs of a μ-GDP release.

    >>> round(advantage(1.0), 4)
    0.3829
    """
    return math.erf(mu / math.sqrt(8))


def obstacle(mechanism: Mechanism) -> str | None:
    """Why there is no such bound; None if there is."""
    if isinstance(mechanism.event(), NonPrivate):
        return "local DP: no clip bounds the features before the noise, so two inputs may lie any distance apart"
    return None
