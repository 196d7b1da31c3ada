"""The cos² noise has the density, variance and Fisher information that its bound relies on."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import kstest

from splitveil.bounds.smoothing import cosine_squared, prior_information, smoothed, variance
from splitveil.randomness import SeededSource

WIDTH = 0.4


def density(u: float) -> float:
    return 2 / WIDTH * math.cos(math.pi * u / WIDTH) ** 2


def test_its_moments_are_those_of_the_density():
    ends = (-WIDTH / 2, WIDTH / 2)

    def slope(u: float) -> float:
        return -2 * math.pi / WIDTH**2 * math.sin(2 * math.pi * u / WIDTH)

    assert quad(density, *ends)[0] == pytest.approx(1)
    assert quad(lambda u: u**2 * density(u), *ends)[0] == pytest.approx(variance(WIDTH))
    inside = (ends[0] + 1e-9, ends[1] - 1e-9)
    assert quad(lambda u: slope(u) ** 2 / density(u), *inside)[0] == pytest.approx(prior_information(WIDTH), rel=1e-5)


def test_draws_follow_the_density():
    v = cosine_squared(torch.rand(20_000, generator=torch.Generator().manual_seed(0)))
    assert v.abs().max() <= 0.5
    assert kstest(v.double().numpy(), lambda t: t + 0.5 + np.sin(2 * math.pi * t) / (2 * math.pi)).pvalue > 0.01
    assert v.var().item() == pytest.approx(variance(1.0), rel=0.03)


def test_it_is_added_to_the_images():
    x = torch.rand(50, 1, 8, 8)
    u = smoothed(x, WIDTH, SeededSource(0)) - x
    assert u.abs().max() <= WIDTH / 2 + 1e-6
    assert u.var().item() == pytest.approx(variance(WIDTH), rel=0.1)
    assert torch.equal(smoothed(x, WIDTH, SeededSource(0)) - x, u)
