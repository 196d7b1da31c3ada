"""How far one unit can move the total, in exact integers, and how much noise that asks for.

    row = φ_int u_intᵀ        Σ φ_int² ≤ 2⁴⁰,   Σ v_int² ≤ W² = 2³⁰ − c_int²,   u_int = [v_int; c_int]

    add or remove one row     Δ² = 2⁴⁰ · 2³⁰
    replace one row           Δ² = 2·2⁷⁰ − 2·min{x·y : x ∈ {κ_int, 2⁴⁰}, y ∈ {c_int² − W², c_int² + W²}}
    document                  Δ = C to add or remove, 2C to replace, C = document_rows · 2³⁵
    heads × shares            one unit is in all of them: Δ² times H·L

κ_int = 2⁴⁰ κ_min/B² − 2·2²⁰·√m: truncation never raises a norm, but it moves each of two rows by up to √m steps and
so can lower their inner product (and raise their distance).

    σ = Δ / μ(ε, δ − slack)   analytic Gaussian; the slack pays for the lattice and the sampler (see sampler.py)
"""

import math
from dataclasses import dataclass

from splitveil.check import UsageError
from splitveil.dp.calibration import gaussian_mu
from splitveil.private_attention.kernel import Kernel
from splitveil.private_attention.lattice import FEATURE_BITS, FEATURE_CAP, VALUE_BITS, VALUE_CAP, count_integer
from splitveil.private_attention.sampler import LatticeSampler, delta_slack
from splitveil.private_attention.spec import PrivacySpec

INNER_MARGIN = 2.0**-30  # of B², taken off κ: the lifted features are floats, right to about 1e-15
MOST_SLACK = 0.5  # of δ


@dataclass(frozen=True)
class Calibration:
    """The noise of a release and the guarantee it buys. Lengths are in lattice steps."""

    scale: int  # σ of the discrete Gaussian
    sensitivity2: int  # Δ², of all heads and shares together
    mu: float  # Δ / σ
    slack: float  # part of δ kept for lattice and sampler


def default_count(spec: PrivacySpec, kernel: Kernel, value_norm: float, dv: int) -> float:
    """The weight c of the counting column that makes the error of an answer least.

    The squared error is ∝ Δ²·(d_v + ‖o‖²/c²). Adding or removing, Δ² ∝ R_w² + c² and c² = R_w²/√d_v is best for ‖o‖ =
    R_w. Replacing, Δ² does not grow until c² = R_w²(B² + κ⁻)/(B² − κ⁻), κ⁻ = min(κ_min, 0), and grows like R_w² + c²
    after.
    """
    square = 1 / math.sqrt(dv)
    if spec.adjacency == "replace_one" and spec.unit == "row":
        least, most = min(kernel.least_inner, 0.0), kernel.norm**2
        square = max(square, (most + least) / (most - least))
    return value_norm * math.sqrt(square)


def row_sensitivity2(spec: PrivacySpec, kernel: Kernel, value_norm: float, count: float) -> int:
    """Δ² of one unit in one head."""
    if spec.unit == "document":
        cap = document_cap(spec) * (1 if spec.adjacency == "add_remove" else 2)
        return cap * cap
    if spec.adjacency == "add_remove":
        return FEATURE_CAP * VALUE_CAP
    c_int = count_integer(value_norm, count)
    c2 = c_int * c_int
    w2 = VALUE_CAP - c2
    corners = [x * y for x in (_least_inner_integer(kernel), FEATURE_CAP) for y in (c2 - w2, c2 + w2)]
    return min(2 * FEATURE_CAP * VALUE_CAP - 2 * min(corners), 4 * FEATURE_CAP * VALUE_CAP)


def document_cap(spec: PrivacySpec) -> int:
    """C: the largest Frobenius norm of a document's sum, in lattice steps."""
    return math.floor(spec.document_rows * (1 << (FEATURE_BITS + VALUE_BITS)))


def calibrate(
    spec: PrivacySpec, unit_sensitivity2: int, sampler: LatticeSampler, *, heads: int, cells: int
) -> Calibration:
    """The least noise for which `spec.shares` releases of `heads` heads, each of `cells` cells, are together (ε, δ)-DP.

    Guarantees: δ_GDP(ε) + slack ≤ δ with the scale rounded up to an integer. A seeded sampler certifies nothing and
    is charged no slack.
    """
    sensitivity2 = unit_sensitivity2 * heads * spec.shares
    delta_length = math.isqrt(sensitivity2 - 1) + 1  # rounded up
    first = math.ceil(delta_length / gaussian_mu(spec.epsilon, spec.delta))
    distance = sampler.distance(first, heads * spec.shares * cells) if sampler.is_private else 0.0
    slack = delta_slack(distance, spec.epsilon)
    if slack > MOST_SLACK * spec.delta:
        raise UsageError(
            f"({spec.epsilon:g}, {spec.delta:g}) cannot be certified: {cells * heads} numbers by {sampler.name} alone "
            f"take {slack:.2g} of delta; raise delta, lower epsilon or the degree, or install opendp"
        )
    scale = math.ceil(delta_length / gaussian_mu(spec.epsilon, spec.delta - slack))
    return Calibration(scale, sensitivity2, math.sqrt(sensitivity2) / scale, slack)


def _least_inner_integer(kernel: Kernel) -> int:
    """A lower bound on ⟨φ_int, φ′_int⟩."""
    share = max(kernel.least_inner / kernel.norm**2, -1.0) - INNER_MARGIN
    moved = (2 << FEATURE_BITS) * (math.isqrt(kernel.n_features) + 1)
    return max(math.floor(share * FEATURE_CAP) - moved, -FEATURE_CAP)
