"""Additive noise: the right distribution from both sources."""

import pytest
import torch
from scipy import stats

from splitveil.check import UsageError
from splitveil.mechanisms import Gaussian, Laplace
from splitveil.randomness import NoiseSource, SeededSource, SystemSource

SOURCES = [SeededSource(5), SystemSource()]
LEAST_P = 1e-6  # the system source is not seeded: a false alarm once in a million runs


class Extreme(NoiseSource):
    """The ends of the uniform range, 0 and the largest float32 below 1."""

    def normal(self, shape, *, device):
        raise NotImplementedError

    def uniform(self, shape, *, device):
        ends = torch.tensor([0.0, 1 - 2.0**-24])
        return ends.repeat(shape[-1])[: shape[-1]].expand(*shape)


@pytest.mark.parametrize("source", SOURCES, ids=["seeded", "system"])
def test_gaussian_noise_is_normal_with_the_stated_deviation(source: NoiseSource) -> None:
    noise = Gaussian(std=0.7)(torch.zeros(4, 5000), source=source).flatten().numpy()
    assert stats.kstest(noise, stats.norm(scale=0.7).cdf).pvalue > LEAST_P
    assert stats.kstest(noise, stats.norm(scale=0.8).cdf).pvalue < LEAST_P


@pytest.mark.parametrize("source", SOURCES, ids=["seeded", "system"])
def test_laplace_noise_is_laplace_with_the_stated_scale(source: NoiseSource) -> None:
    noise = Laplace(scale=0.7)(torch.zeros(4, 5000), source=source).flatten().numpy()
    assert stats.kstest(noise, stats.laplace(scale=0.7).cdf).pvalue > LEAST_P
    assert stats.kstest(noise, stats.laplace(scale=0.8).cdf).pvalue < LEAST_P


def test_laplace_noise_is_finite_at_the_ends_of_the_uniform_range() -> None:
    assert Laplace(scale=1.0)(torch.zeros(2, 4), source=Extreme()).isfinite().all()


def test_coordinates_and_samples_are_independent() -> None:
    noise = Gaussian(std=1.0)(torch.zeros(2000, 3), source=SeededSource(0))
    assert (torch.corrcoef(noise.T) - torch.eye(3)).abs().max() < 0.1
    assert torch.unique(noise).numel() == noise.numel()


@pytest.mark.parametrize("build", [lambda v: Gaussian(std=v), lambda v: Laplace(scale=v)])
@pytest.mark.parametrize("value", [0.0, -0.1, float("nan"), float("inf")])
def test_impossible_noise_is_refused_in_one_line(build, value: float) -> None:
    with pytest.raises(UsageError, match=r"^(gaussian std|laplace scale) must be > 0( and finite)?, got [^\n]*$"):
        build(value)
