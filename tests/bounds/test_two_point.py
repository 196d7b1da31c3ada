"""The two-point bound against brute integration, and that it holds for images without any density."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from splitveil.bounds import Parts, channel_of, encoded, two_point
from splitveil.bounds.two_point import blur, pairs
from splitveil.check import UsageError
from splitveil.data import Part
from splitveil.mechanisms import Gaussian
from splitveil.split import Client
from worlds.linear_gaussian import Matrix


@pytest.mark.parametrize("distance", [0.0, 0.3, 2.0, 7.0, 19.0])
def test_g_is_the_integral(distance):
    def overlap(s: float) -> float:
        p, q = (math.exp(-((s - at) ** 2) / 2) / math.sqrt(2 * math.pi) for at in (0.0, distance))
        return p * q / (p + q) / 2

    wanted = quad(overlap, distance / 2 - 9, distance / 2 + 9, epsabs=0, epsrel=1e-10)[0]
    assert blur(torch.tensor([distance]).double()).item() == pytest.approx(wanted, rel=1e-8)


def test_g_falls_from_a_quarter_to_nothing():
    g = blur(torch.linspace(0, 25, 200).double())
    assert g[0].item() == pytest.approx(0.25, abs=1e-15)
    assert (g.diff() <= 0).all()
    assert g[-1] == 0


def test_pairs_are_disjoint_and_of_one_class():
    labels = torch.tensor([0] * 5 + [1] * 4 + [2] + [4] * 2)
    one, other = pairs(labels, torch.Generator().manual_seed(0))
    assert torch.equal(labels[one], labels[other])
    assert len(torch.cat([one, other]).unique()) == 2 * len(one) == 10
    with pytest.raises(UsageError, match="two images of one class"):
        pairs(torch.arange(4), torch.Generator())


def two_images(std: float, n: int = 400) -> tuple[Client, Parts]:
    """x is black or white with equal chance; the client sends its mean and noise."""
    white = torch.arange(n) % 2
    pixels = (255 * white)[:, None, None, None].expand(n, 1, 2, 2).to(torch.uint8)
    part = Part(
        pixels[torch.randperm(n, generator=torch.Generator().manual_seed(1))], torch.zeros(n, dtype=torch.int64)
    )
    return Client(Matrix(torch.full((1, 4), 0.25)), Gaussian(std=std)), Parts(part, part, part, 1)


@pytest.mark.parametrize(("std", "releases"), [(0.3, 1), (1.0, 1), (1.0, 4)])
def test_it_is_half_the_best_error_on_two_images(std, releases):
    """Black and white: the best answer is the chance of white. Half of all pairs are equal, and bound nothing."""
    client, parts = two_images(std)
    found = two_point(encoded(channel_of(client), parts), parts.read, releases=releases)
    s = np.linspace(0.5 - 9 * std, 0.5 + 9 * std, 100_001)
    black, white = (np.exp(-((s - at) ** 2) * releases / (2 * std**2)) for at in (0.0, 1.0))
    scale = math.sqrt(releases / (2 * math.pi)) / std * (s[1] - s[0])
    best = float(scale * (black * white / (black + white)).sum()) / 2
    assert found.interval[0] <= best / 2 <= found.interval[1]
    assert found.is_about_attacks


def test_it_holds_against_attackers_who_know_the_label_where_pairs_share_it():
    client, parts = two_images(1.0)
    for n_classes in (1, 2):
        known = encoded(channel_of(client), replace(parts, n_classes=n_classes))
        assert two_point(known, parts.read).label_known is (n_classes > 1)
