"""Calibration against dp_accounting, 60-digit arithmetic, and the design's own table."""

import math

import dp_accounting
import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitveil.check import UsageError
from splitveil.dp.calibration import delta_of, epsilon_of, gaussian_mu, gaussian_std

EPSILONS = st.floats(1e-3, 50.0)
DELTAS = st.floats(-30.0, -0.5).map(lambda power: 10.0**power)
MUS = st.floats(-3.0, 1.5).map(lambda power: 10.0**power)


def exact_log_delta(mu: float, epsilon: float) -> float:
    """log δ(μ, ε) straight from the definition; enough digits that nothing cancels."""
    with mpmath.workdps(60 + int(epsilon / mu) ** 2 // 2):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return float(mpmath.log(mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)))


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 2.0, 4.0, 8.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-3])
def test_std_equals_dp_accounting(epsilon: float, delta: float) -> None:
    theirs = dp_accounting.get_sigma_gaussian(epsilon, delta, tol=1e-12)
    assert gaussian_std(epsilon, delta, sensitivity=1.0) == pytest.approx(theirs, rel=1e-6)


@pytest.mark.parametrize("sigma", [0.4, 1.0, 4.0, 20.0])
def test_epsilon_equals_dp_accounting(sigma: float) -> None:
    assert epsilon_of(1 / sigma, 1e-6) == pytest.approx(dp_accounting.get_epsilon_gaussian(sigma, 1e-6), abs=1e-6)


@pytest.mark.parametrize(("epsilon", "ratio"), [(0.5, 8.06), (1.0, 4.22), (2.0, 2.23), (4.0, 1.19), (8.0, 0.65)])
def test_table_of_the_design_at_delta_one_in_a_million(epsilon: float, ratio: float) -> None:
    assert gaussian_std(epsilon, 1e-6, sensitivity=1.0) == pytest.approx(ratio, abs=0.005)


@pytest.mark.parametrize(
    ("mu", "epsilon"),
    [
        *[(1e-12, 0.0), (1e-7, 1e-7), (1e-5, 0.0), (0.9e-5, 3e-5), (1.1e-5, 3e-5)],
        *[(0.02, 0.5), (0.3, 8.0), (3.0, 0.1), (30.0, 450.0), (40.0, 0.0)],
    ],
)
def test_delta_keeps_its_digits_in_both_tails(mu: float, epsilon: float) -> None:
    assert math.log(delta_of(mu, epsilon)) == pytest.approx(exact_log_delta(mu, epsilon), rel=1e-9, abs=1e-9)


@given(epsilon=EPSILONS, delta=DELTAS)
def test_mu_spends_delta_exactly_and_never_more(epsilon: float, delta: float) -> None:
    spent = delta_of(gaussian_mu(epsilon, delta), epsilon)
    assert delta * (1 - 1e-9) <= spent <= delta * (1 + 1e-12)


@given(mu=MUS, delta=DELTAS)
def test_epsilon_is_the_inverse_of_mu(mu: float, delta: float) -> None:
    epsilon = epsilon_of(mu, delta)
    assert delta_of(mu, epsilon) <= delta * (1 + 1e-12)
    if epsilon > 1e-3:
        assert gaussian_mu(epsilon, delta) == pytest.approx(mu, rel=1e-9)


@given(mu=MUS, epsilon=EPSILONS)
def test_delta_grows_with_mu_and_falls_with_epsilon(mu: float, epsilon: float) -> None:
    here = delta_of(mu, epsilon)
    assert delta_of(mu * 1.01, epsilon) >= here >= delta_of(mu, epsilon * 1.01)


def test_std_scales_with_the_sensitivity() -> None:
    assert gaussian_std(1.0, 1e-6, sensitivity=6.0) == 6.0 * gaussian_std(1.0, 1e-6, sensitivity=1.0)


def test_the_ends_of_the_range() -> None:
    assert epsilon_of(0.0, 1e-6) == 0.0
    assert epsilon_of(math.inf, 1e-6) == math.inf
    assert delta_of(0.0, 0.0) == 0.0
    assert delta_of(200.0, 0.0) == 1.0
    assert gaussian_mu(0.0, 1e-20) == pytest.approx(1e-20 * math.sqrt(2 * math.pi), rel=1e-9)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-6, math.nan])
def test_delta_outside_the_open_interval_is_refused_in_one_line(delta: float) -> None:
    with pytest.raises(UsageError, match=r"^delta must lie in \(0, 1\), got [^\n]*$"):
        gaussian_std(1.0, delta, sensitivity=1.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: gaussian_mu(-1.0, 1e-6),
        lambda: gaussian_std(1.0, 1e-6, sensitivity=0.0),
        lambda: epsilon_of(-1.0, 1e-6),
        lambda: epsilon_of(math.nan, 1e-6),
        lambda: delta_of(-1.0, 1.0),
    ],
)
def test_impossible_arguments_are_refused(call) -> None:
    with pytest.raises(UsageError, match="must be"):
        call()
