"""Local DP against dp_accounting, against total variation, and absent where nothing bounds the features."""

import math

import dp_accounting
import pytest
from scipy.stats import norm

from splitveil.bounds import Kind, Side, advantage, local_dp
from splitveil.check import UsageError
from splitveil.mechanisms import Chain, Clip, Gaussian, Identity, Laplace, Quantize


def clipped(radius: float, std: float) -> Chain:
    return Chain([Clip(radius=radius), Gaussian(std=std)])


@pytest.mark.parametrize(("radius", "std", "releases"), [(1.0, 4.0, 1), (1.0, 4.0, 16), (0.25, 0.5, 4), (3.0, 2.0, 1)])
def test_epsilon_and_advantage_are_those_of_the_privacy_loss_distribution(radius, std, releases):
    tell, epsilon = local_dp(clipped(radius, std), releases=releases)
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(dp_accounting.GaussianDpEvent(std / (2 * radius)), releases)
    assert epsilon.value == pytest.approx(accountant.get_epsilon(1e-6), abs=5e-3)
    assert tell.value == pytest.approx(accountant.get_delta(0.0), abs=2e-3)  # δ at ε = 0 is the advantage
    assert (tell.kind, tell.side, tell.releases) == (Kind.PROVED, Side.AT_MOST, releases)
    assert "real arithmetic" in tell.holds_if[0]


def test_the_advantage_is_the_total_variation_of_the_two_farthest_inputs():
    mu = 2 * 1.0 * math.sqrt(9) / 3.0
    assert local_dp(clipped(1.0, 3.0), releases=9)[0].value == pytest.approx(2 * norm.cdf(mu / 2) - 1, abs=1e-12)
    assert advantage(0.0) == 0.0


def test_laplace_behind_an_l1_clip_is_bounded_by_its_epsilon():
    tell, epsilon = local_dp(Chain([Clip(radius=0.5, norm=1), Laplace(scale=2.0)]), releases=3)
    assert epsilon.value <= 3 * 0.5 + 1e-9
    assert tell.value >= math.tanh(0.5 / 2)  # what one release already gives away


def test_post_processing_costs_nothing():
    more = Chain([clipped(1.0, 4.0), Quantize(levels=4)])
    assert local_dp(more) == local_dp(clipped(1.0, 4.0))


@pytest.mark.parametrize(
    "mechanism", [Identity(), Gaussian(std=1.0), Clip(radius=1.0), Chain([Gaussian(std=1.0), Clip(radius=1.0)])]
)
def test_without_a_clip_before_the_noise_there_is_no_bound(mechanism):
    with pytest.raises(UsageError, match="no clip bounds the features before the noise"):
        local_dp(mechanism)
