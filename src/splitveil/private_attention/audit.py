"""Is the noise as large as claimed? A statistical audit of releases, and a recomputation of a memory's numbers.

    t = ⟨release − total₀, g⟩ / (σ‖g‖),   g = total₁ − total₀              N(0, 1) without the unit, N(‖g‖/σ, 1) with it

The projection on the known difference is the most powerful view of a Gaussian release. From the two samples' error
rates at the threshold halfway, with Clopper–Pearson upper limits at the stated confidence,

    μ ≥ Φ⁻¹(1 − FPR) − Φ⁻¹(FNR)

holds for any μ-GDP release. An audit can catch a broken guarantee; it cannot prove a sound one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splitveil.check import UsageError
from splitveil.dp.calibration import delta_of
from splitveil.private_attention.builder import Builder
from splitveil.private_attention.facts import ReleaseFacts
from splitveil.private_attention.memory import PrivateKV
from splitveil.private_attention.polynomial import PolynomialFeatures
from splitveil.private_attention.sampler import LatticeSampler, RejectionSampler
from splitveil.private_attention.sensitivity import row_sensitivity2
from splitveil.private_attention.spec import Bounds

CONFIDENCE = 0.999
DRAWS_AT_A_TIME = 2**20
LATTICE_TOLERANCE = 2.0**-50  # relative: one product and one quotient in float64; tells integers apart up to 2⁴⁸


@dataclass(frozen=True)
class AuditResult:
    """`measured_mu` is a lower limit at 99.9 % confidence; above `claimed_mu` the claim is refuted."""

    claimed_mu: float
    measured_mu: float
    releases: int

    @property
    def is_refuted(self) -> bool:
        return self.measured_mu > self.claimed_mu


def mu_lower_limit(without: NDArray[np.float64], with_: NDArray[np.float64], threshold: float) -> float:
    """The largest μ that the two samples of a statistic prove, at the audit's confidence."""
    from scipy.stats import norm

    false_alarm = _upper_rate(int((without > threshold).sum()), len(without))
    missed = _upper_rate(int((with_ <= threshold).sum()), len(with_))
    return float(norm.isf(false_alarm) - norm.ppf(missed))


def audit_noise(
    totals: tuple[Tensor, Tensor], scale: int, sampler: LatticeSampler, *, claimed_mu: float, releases: int = 40_000
) -> AuditResult:
    """Draw `releases` releases of each of two neighboring totals and test the claim on them."""
    difference = (totals[1] - totals[0]).double().flatten().numpy()
    difference = difference[difference != 0]
    length = float(np.linalg.norm(difference))
    if not length:
        return AuditResult(claimed_mu, 0.0, releases)
    direction = difference / length
    without = _projections(direction, scale, sampler, releases)
    with_ = _projections(direction, scale, sampler, releases) + length / scale
    return AuditResult(claimed_mu, mu_lower_limit(without, with_, length / scale / 2), releases)


def audit_builders(without: Builder, with_: Builder, *, releases: int = 40_000) -> AuditResult:
    """Two builders that hold neighboring rows, audited with the noise they would use. Neither is released."""
    shape = without._encoder.shape
    totals = [torch.zeros(shape, dtype=torch.int64) if b._total is None else b._total.cpu() for b in (without, with_)]
    calibration = without.facts.calibration
    one_share = calibration.mu / math.sqrt(without.facts.spec.shares)
    return audit_noise(
        (totals[0], totals[1]), calibration.scale, without._sampler, claimed_mu=one_share, releases=releases
    )


def audit_twin(facts: ReleaseFacts, *, releases: int = 40_000) -> AuditResult:
    """Audit a memory's settings on a twin of two dimensions: the same spec, heads, c and bounds, a Taylor kernel of
    the same β and degree ≤ 2, and two neighbors at the bounds. The noise is drawn as for a real release, but by our
    own sampler.
    """
    degree = facts.kernel.settings().get("degree", 2)
    exponent = facts.kernel.beta * facts.bounds.largest_inner
    features = PolynomialFeatures(2, min(degree, 2)).taylor(facts.kernel.beta * min(1.0, 30.0 / exponent))
    bounds = Bounds(facts.bounds.key_norm, facts.bounds.query_norm, facts.bounds.value_norm)
    key = torch.tensor([[bounds.key_norm, 0.0]], dtype=torch.float64)
    value = torch.tensor([[bounds.value_norm, 0.0]], dtype=torch.float64)
    neighbors = []
    for sign in (-1.0, 1.0):
        b = Builder(facts.spec, bounds, features, 2, heads=facts.heads, count=facts.count, sampler=RejectionSampler())
        if facts.spec.adjacency == "replace_one" or sign > 0:
            keys, values = (x[:, None].repeat(1, facts.heads, 1) for x in (key, sign * value))
            b.add(keys, values, [0] if facts.spec.unit == "document" else None)
        neighbors.append(b)
    return audit_builders(neighbors[0], neighbors[1], releases=releases)


def check_numbers(memory: PrivateKV) -> Sequence[str]:
    """What is wrong with a memory's own numbers, a sentence each; empty when they agree with each other.

    Recomputes the sensitivity from the kernel and the bounds, the δ that the noise leaves, and looks whether every
    released number lies on the public lattice.
    """
    facts, wrong = memory.facts, []
    calibration, spec = facts.calibration, facts.spec
    if not facts.is_private:
        wrong.append("the noise came from a seed: not private")
    if calibration.sensitivity2 < facts.heads * spec.shares * _unit2(facts):
        wrong.append("the recorded sensitivity is below that of the kernel, bounds, heads and shares")
    if calibration.scale * calibration.mu < math.sqrt(calibration.sensitivity2) * (1 - 1e-12):
        wrong.append("the recorded μ is smaller than sensitivity / noise")
    if delta_of(calibration.mu, spec.epsilon) + calibration.slack > spec.delta * (1 + 1e-9):
        wrong.append("the noise is too small for the stated (ε, δ)")
    if not facts.notes and not is_on_lattice(memory):
        wrong.append("a released number is not on the public lattice")
    return wrong


def is_on_lattice(memory: PrivateKV) -> bool:
    """Whether every number of an unprocessed release is an integer multiple of the public step."""
    steps = memory.moments / memory.facts.step
    return bool(((steps - steps.round()).abs() <= LATTICE_TOLERANCE * steps.abs()).all())


def _unit2(facts: ReleaseFacts) -> int:
    return row_sensitivity2(facts.spec, facts.kernel, facts.bounds.value_norm, facts.count)


def _projections(
    direction: NDArray[np.float64], scale: int, sampler: LatticeSampler, releases: int
) -> NDArray[np.float64]:
    size = max(1, DRAWS_AT_A_TIME // len(direction))
    parts = []
    for start in range(0, releases, size):
        count = min(size, releases - start)
        parts.append(sampler.draw(scale, count * len(direction)).reshape(count, -1) @ (direction / scale))
    return np.concatenate(parts)


def _upper_rate(hits: int, trials: int) -> float:
    """Clopper–Pearson upper limit of a rate; both rates together hold with the stated confidence."""
    from scipy.stats import beta

    if trials < 1:
        raise UsageError("an audit needs at least one release")
    return 1.0 if hits == trials else float(beta.ppf(1 - (1 - CONFIDENCE) / 2, hits + 1, trials - hits))
