"""One message style: what was wanted, what came, what to do."""

import math

import pytest

from splitveil import check
from splitveil.check import RunError, SplitVeilError, UsageError


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_positive_refuses_what_is_not(value: float) -> None:
    with pytest.raises(UsageError, match=r"radius must be > 0( and finite)?, got .*; use Identity"):
        check.positive("radius", value, hint="use Identity")


@pytest.mark.parametrize("value", [-0.1, 1.0, math.nan])
def test_fraction_refuses_one_and_below_zero(value: float) -> None:
    with pytest.raises(UsageError, match=r"rate must lie in \[0, 1\)"):
        check.fraction("rate", value)


def test_at_least_takes_the_border() -> None:
    assert check.at_least("n", 3, 3) == 3
    with pytest.raises(UsageError, match="n must be ≥ 3, got 2"):
        check.at_least("n", 2, 3)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_number_that_is_not_finite_is_told_as_such(value: float) -> None:
    with pytest.raises(UsageError, match=f"^radius must be > 0 and finite, got {value}$"):
        check.positive("radius", value)
    with pytest.raises(UsageError, match=f"^n must be ≥ 3 and finite, got {value}$"):
        check.at_least("n", value, 3)


def test_one_of_names_the_nearest_and_lists_all() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'gaussian'.*gaussian, laplace"):
        check.one_of("mechanism", "gausian", ["gaussian", "laplace"])


def test_mistakes_are_also_the_builtin_errors_callers_expect() -> None:
    assert issubclass(UsageError, ValueError)
    assert issubclass(RunError, RuntimeError)
    assert issubclass(UsageError, SplitVeilError)
