"""The ledger against dp_accounting's privacy loss distributions, and against its own algebra."""

import math

import dp_accounting
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from splitveil.dp import Composed, Event, Gaussian, Laplace, Ledger, NonPrivate, epsilon_of, mu_of, pure_mu

DELTA = 1e-6


def ledger_of(*events: Event) -> Ledger:
    ledger = Ledger()
    for event in events:
        ledger.record(event)
    return ledger


def pld_epsilon(*events: Event) -> float:
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    for event in events:
        match event:
            case Gaussian(sensitivity, std):
                accountant.compose(dp_accounting.GaussianDpEvent(std / sensitivity))
            case Laplace(sensitivity, scale):
                accountant.compose(dp_accounting.LaplaceDpEvent(scale / sensitivity))
    return accountant.get_epsilon(DELTA)


@pytest.mark.parametrize(
    "events",
    [
        (Gaussian(1.0, 2.0),),
        (Gaussian(1.0, 2.0),) * 10,
        (Gaussian(2.0, 1.0), Gaussian(1.0, 3.0), Gaussian(0.5, 0.5)),
    ],
)
def test_gaussian_releases_cost_what_the_privacy_loss_distribution_says(events: tuple[Event, ...]) -> None:
    assert ledger_of(*events).epsilon(DELTA) == pytest.approx(pld_epsilon(*events), abs=5e-3)


@pytest.mark.parametrize(
    "events",
    [
        (Laplace(1.0, 1.0),),
        (Laplace(1.0, 10.0),) * 50,
        (Gaussian(1.0, 2.0), Laplace(1.0, 2.0), Laplace(1.0, 2.0)),
    ],
)
def test_laplace_is_never_charged_less_than_it_costs(events: tuple[Event, ...]) -> None:
    ours, tight = ledger_of(*events).epsilon(DELTA), pld_epsilon(*events)
    assert tight - 1e-3 <= ours <= 2.5 * tight


@pytest.mark.parametrize("epsilon", [1e-3, 0.3, 1.0, 5.0, 30.0])
def test_pure_mu_is_sound_and_tight(epsilon: float) -> None:
    mu, kink = pure_mu(epsilon), 1 / (1 + math.exp(epsilon))
    for step in range(1, 200):
        alpha = norm.sf(8 - step * 16 / 200)
        line = max(1 - math.exp(epsilon) * alpha, math.exp(-epsilon) * (1 - alpha))
        assert norm.cdf(norm.isf(alpha) - mu) <= line + 1e-12
    assert norm.cdf(norm.isf(kink) - mu) == pytest.approx(kink, rel=1e-9)


def test_pure_mu_survives_epsilons_whose_exponential_overflows() -> None:
    assert pure_mu(2000.0) == pytest.approx(2 * math.sqrt(2 * 2000.0), rel=0.01)


def test_a_single_pure_release_costs_its_epsilon() -> None:
    assert ledger_of(Laplace(sensitivity=2.0, scale=4.0)).epsilon(1e-12) == 0.5


def test_many_small_pure_releases_cost_less_than_their_sum() -> None:
    assert ledger_of(*(Laplace(0.01, 1.0),) * 1000).epsilon(DELTA) < 0.5 * 10.0


@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=5), st.integers(0, 4))
def test_a_composed_event_equals_its_parts(stds: list[float], count: int) -> None:
    parts = (*(Gaussian(1.0, std) for std in stds), Laplace(1.0, 3.0))
    together = mu_of(Composed(parts, count))
    apart = ledger_of(*parts * count).mu
    assert together == pytest.approx(apart, rel=1e-12, abs=0.0)


def test_releases_of_one_input_grow_as_the_root_of_their_number() -> None:
    ledger = Ledger()
    ledger.record(Gaussian(1.0, 2.0), times=16)
    assert ledger.mu == 2.0
    assert ledger.epsilon(DELTA) == epsilon_of(2.0, DELTA)


def test_a_release_without_guarantee_absorbs_all_others() -> None:
    ledger = ledger_of(Gaussian(1.0, 1.0), NonPrivate(), Laplace(1.0, 1.0))
    assert ledger.mu == ledger.epsilon(DELTA) == math.inf
    assert mu_of(Composed((NonPrivate(),), count=3)) == math.inf


def test_nothing_released_costs_nothing() -> None:
    ledger = ledger_of(Composed((NonPrivate(),), count=0), Gaussian(sensitivity=0.0, std=0.0))
    assert ledger.mu == ledger.epsilon(DELTA) == 0.0


def test_no_noise_is_no_guarantee() -> None:
    assert mu_of(Gaussian(1.0, 0.0)) == mu_of(Laplace(1.0, 0.0)) == math.inf
