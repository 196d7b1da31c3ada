import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from splitveil.check import UsageError
from splitveil.private_attention.sampler import (
    DECISION_ERROR,
    LatticeSampler,
    OpenDPSampler,
    RejectionSampler,
    choose_sampler,
    delta_slack,
)

SAMPLERS = {"own": RejectionSampler(), "seeded": RejectionSampler(7), "opendp": OpenDPSampler()}


@pytest.fixture(params=SAMPLERS.values(), ids=SAMPLERS.keys())
def sampler(request: pytest.FixtureRequest) -> LatticeSampler:
    return request.param


def mass(scale: int, reach: int) -> np.ndarray:
    """The discrete Gaussian on −reach … reach."""
    z = np.arange(-reach, reach + 1, dtype=float)
    weights = np.exp(-(z**2) / (2 * scale**2))
    return weights / weights.sum()


def test_draws_follow_the_discrete_gaussian(sampler: LatticeSampler) -> None:
    scale, count = 16, 8_000 if isinstance(sampler, OpenDPSampler) else 400_000
    drawn = sampler.draw(scale, count)
    edges = np.arange(-40, 41, 5)
    wanted = np.add.reduceat(mass(scale, 400), edges + 400)[:-1] * count
    found = np.histogram(drawn, bins=edges - 0.5)[0]
    outside = count - found.sum(), count - wanted.sum()
    result = stats.chisquare([*found, outside[0]], [*wanted, outside[1]])
    assert result.pvalue > 1e-5


@pytest.mark.parametrize("scale", [2**20, 2**37, 2**48])
def test_wide_draws_have_the_right_spread_and_use_every_residue(scale: int) -> None:
    drawn = RejectionSampler(1).draw(scale, 200_000)
    assert stats.kstest(drawn / scale, "norm").pvalue > 1e-4
    assert stats.chisquare(np.bincount(drawn % 16, minlength=16)).pvalue > 1e-5  # low bits are noise too


def test_signs_are_symmetric_and_zero_is_not_counted_twice() -> None:
    drawn = RejectionSampler(2).draw(16, 400_000)
    zero = mass(16, 400)[400]
    assert abs((drawn == 0).mean() - zero) < 5 * math.sqrt(zero / len(drawn))
    assert abs((drawn > 0).mean() - (drawn < 0).mean()) < 5 / math.sqrt(len(drawn))


@pytest.mark.parametrize("scale", [16, 20, 40])
def test_stated_distance_to_the_rounded_normal_holds(scale: int) -> None:
    z = np.arange(-40 * scale, 40 * scale + 1)
    rounded = np.diff(stats.norm.cdf(np.append(z - 0.5, z[-1] + 0.5) / scale))
    distance = np.abs(rounded - mass(scale, 40 * scale)).sum() / 2
    stated = OpenDPSampler().distance(scale, 1)
    assert distance <= stated <= 3 * distance


def test_each_bernoulli_is_right_to_its_stated_error() -> None:
    """P[u < fl(e^{−γ})] for a 53-bit uniform u is ⌈fl · 2⁵³⌉ / 2⁵³; mpmath says what it should be."""
    import mpmath

    mpmath.mp.prec = 200
    for gamma in np.concatenate([np.linspace(0, 5, 41), np.geomspace(1e-12, 40, 41)]):
        decided = Fraction(math.ceil(Fraction(float(np.exp(-gamma))) * 2**53), 2**53)
        exact = mpmath.exp(-mpmath.mpf(float(gamma)))
        assert abs(float(mpmath.mpf(decided.numerator) / decided.denominator - exact)) < DECISION_ERROR / 4


def test_acceptance_argument_is_right_to_its_stated_error() -> None:
    """γ = (|y| − σ²/t)² / 2σ² in float64 against exact rationals, in effect on e^{−γ}."""
    for scale in (16, 1000, 2**37 + 12345, 2**48):
        t = scale + 1
        for y in (0, 1, scale // 3, scale, 2 * scale + 1, 5 * scale, 9 * scale):
            gap = (np.int64(y) - scale * scale / t) / scale
            exact = Fraction(y) - Fraction(scale * scale, t)
            gamma = exact * exact / (2 * scale * scale)
            wrong = abs(float(Fraction(float(gap * gap / 2)) - gamma)) * math.exp(-float(gamma))
            assert wrong < DECISION_ERROR / 2


def test_expected_decisions_stay_below_the_stated_number(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, decided = RejectionSampler(3), []
    happens = sampler._happens

    def counting(gamma: np.ndarray) -> np.ndarray:
        decided.append(len(gamma))
        return happens(gamma)

    monkeypatch.setattr(sampler, "_happens", counting)
    accepted = len(sampler._candidates(2**37, 200_000))
    assert sum(decided) / accepted < 6.5  # the ledger charges 8


def test_a_seed_repeats_and_is_not_private() -> None:
    first, second = RejectionSampler(5), RejectionSampler(5)
    assert np.array_equal(first.draw(100, 50), second.draw(100, 50))
    assert not first.is_private
    assert "NOT PRIVATE" in first.name


def test_the_system_generator_does_not_repeat() -> None:
    sampler = RejectionSampler()
    assert sampler.is_private
    assert not np.array_equal(sampler.draw(2**30, 50), sampler.draw(2**30, 50))


def test_opendp_is_chosen_where_installed_and_our_own_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    assert isinstance(choose_sampler(), OpenDPSampler)
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    assert isinstance(choose_sampler(), RejectionSampler)
    assert choose_sampler().is_private
    assert not choose_sampler(3).is_private


def test_slack_is_what_a_distance_adds_to_delta() -> None:
    assert delta_slack(1e-9, 1.0) == pytest.approx(1e-9 * (1 + math.e))


@pytest.mark.parametrize("scale", [0, 15, 2**48 + 1])
def test_a_scale_outside_the_proved_range_is_refused(sampler: LatticeSampler, scale: int) -> None:
    with pytest.raises(UsageError, match="noise scale"):
        sampler.draw(scale, 1)
