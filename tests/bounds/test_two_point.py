"""The two-point bound against brute integration, and that it holds for images without any density."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch import Tensor, nn

from splitveil.bounds import Parts, channel_of, encoded, two_point
from splitveil.bounds.parts import Encoded
from splitveil.bounds.two_point import LEAST_PAIRS, blur, count_pairs, pairs
from splitveil.check import UsageError
from splitveil.data import Part, fashion
from splitveil.mechanisms import Gaussian
from splitveil.randomness import stream
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
    assert count_pairs(labels) == len(one)


def drawn(labels: Tensor, victims: Part, *, seed: int = 0) -> tuple[Encoded, Part]:
    """Random victims under these labels, seen through eight numbers and much noise."""
    torch.manual_seed(0)
    client = Client(nn.Sequential(nn.Flatten(), nn.Linear(784, 8)), Gaussian(std=1.0))
    chosen = torch.randperm(len(victims), generator=torch.Generator().manual_seed(seed))[: len(labels)]
    part = Part(victims.select(chosen).pixels, labels)
    n_classes = int(labels.max()) + 1
    return encoded(channel_of(client), Parts(part, part, part, n_classes)), part


@pytest.mark.parametrize("labels", [torch.arange(4), torch.zeros(59).long(), torch.arange(90) // 3])
def test_few_pairs_bound_nothing(labels):
    known, part = drawn(labels, fashion().victims)
    if count_pairs(labels) >= LEAST_PAIRS:
        assert two_point(known, part).value > 0
        return
    with pytest.raises(UsageError, match="two points: needs 30 pairs of images of one class, got"):
        two_point(known, part)


def test_the_lower_end_seldom_lies_above_the_truth_with_the_fewest_pairs_that_are_taken():
    """2.5 % of draws if the interval were exact; with 1 pair it is every other draw, with 3 every ninth."""
    victims, n = fashion().victims, 100
    truth = two_point(*drawn(torch.zeros(len(victims)).long(), victims)).value
    draws = [two_point(*drawn(torch.zeros(2 * LEAST_PAIRS).long(), victims, seed=k)) for k in range(n)]
    assert sum(bound.safe > truth for bound in draws) / n < 0.08
    assert abs(sum(bound.value for bound in draws) / n / truth - 1) < 0.05


@pytest.mark.parametrize(("n_alone", "n_zeros"), [(0, 0), (1, 1), (10, 5), (59, 30)])
def test_two_images_that_are_alone_in_their_classes_count_as_a_pair_with_nothing(n_alone, n_zeros):
    labels = torch.cat([torch.zeros(2 * LEAST_PAIRS).long(), 1 + torch.arange(n_alone)])
    known, part = drawn(labels, fashion().victims)
    one, other = pairs(labels, stream(0, "bounds", "pairs"))
    x, z = part.images().double().flatten(1), known.read.z.double()
    found = blur((z[one] - z[other]).norm(dim=1)) * (x[one] - x[other]).square().mean(1)
    bound = two_point(known, part)
    assert len(found) == LEAST_PAIRS
    assert bound.value == pytest.approx(found.sum().item() / (LEAST_PAIRS + n_zeros), rel=1e-5)
    assert bound.interval[0] < bound.value < bound.interval[1]


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
