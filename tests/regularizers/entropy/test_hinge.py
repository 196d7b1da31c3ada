import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitveil.check import UsageError
from splitveil.regularizers.entropy import Information, Linear, Log, Softplus
from splitveil.regularizers.entropy.hinge import Hinge

ALL: list[Hinge] = [Information(), Linear(), Log(), Softplus(), Log(pool="before_log"), Softplus(pool="before_log")]


@pytest.mark.parametrize("hinge", ALL, ids=str)
@given(v=st.lists(st.floats(0, 1e6), min_size=1, max_size=5), more=st.floats(1e-3, 10))
def test_more_variance_never_costs_less(hinge: Hinge, v: list[float], more: float) -> None:
    var = torch.tensor(v, dtype=torch.float64)
    cost = [float(hinge.charge(w, noise_var=0.01, tau=0.005)) for w in (var, var + more)]
    assert 0 <= cost[0] <= cost[1]


def test_information_of_one_dimension_is_the_capacity_of_the_channel() -> None:
    assert float(Information().charge(torch.tensor([0.03]), noise_var=0.01, tau=1.0)) == pytest.approx(
        0.5 * math.log(4)
    )


def test_log_is_silent_below_the_threshold_and_counts_e_folds_above() -> None:
    hinge = Log(floor=1e-12)
    assert float(hinge.charge(torch.tensor([0.4]), noise_var=1.0, tau=0.5)) == 0
    assert float(hinge.charge(torch.tensor([0.5 * math.e]), noise_var=1.0, tau=0.5)) == pytest.approx(1.0)


def test_softplus_tends_to_log_when_sharp() -> None:
    var = torch.tensor([0.1, 0.5, 3.0])
    sharp = Softplus(sharpness=500.0).charge(var, noise_var=1.0, tau=0.3)
    torch.testing.assert_close(sharp, Log().charge(var, noise_var=1.0, tau=0.3), atol=2e-3, rtol=0)


def test_pooling_before_the_log_holds_the_mean_variance_against_tau() -> None:
    var = torch.tensor([0.0, 4.0])
    assert float(Log(pool="before_log").charge(var, noise_var=1.0, tau=1.0)) == pytest.approx(math.log(2), rel=1e-5)
    assert float(Log().charge(var, noise_var=1.0, tau=1.0)) == pytest.approx(math.log(4) / 2, rel=1e-5)


@pytest.mark.parametrize("hinge", ALL, ids=str)
def test_an_open_gate_changes_nothing_and_a_shut_one_lowers(hinge: Hinge) -> None:
    var = torch.tensor([0.2, 4.0])
    free, opened, half = (
        float(hinge.charge(var, noise_var=1.0, tau=0.1, gate=g))
        for g in (None, torch.ones(2), torch.tensor([1.0, 0.5]))
    )
    assert free == opened
    assert half < free


def test_a_floor_of_zero_is_refused() -> None:
    with pytest.raises(UsageError, match="floor must be > 0"):
        Log(floor=0.0)
