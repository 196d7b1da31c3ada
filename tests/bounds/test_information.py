"""Bits on fresh data against worlds where the information is known, and in-sample ones that fall below it."""

import math

import pytest
import torch

from splitveil.bounds import Channel, Encoded, Kind, Points, channel_of, encoded, information, parts_of, readings
from splitveil.mechanisms import Gaussian, Identity
from splitveil.mixtures import Mixture, leak_nats
from splitveil.split import Client
from worlds.linear_gaussian import world

STD = 0.5
CHANNEL = Channel(Client(torch.nn.Flatten(), Identity()), (), STD)


class MixtureWorld:
    """z of class c is a mixture of two Gaussians with known means and variances."""

    def __init__(self, dim: int, n_classes: int = 2, gap: float = 1.0) -> None:
        rng = torch.Generator().manual_seed(0)
        self.mean = gap * torch.randn(n_classes, 2, dim, generator=rng)
        self.var = 0.2 + torch.rand(n_classes, 2, dim, generator=rng)
        self.dim, self.n_classes = dim, n_classes

    def points(self, n: int, seed: int) -> Points:
        rng = torch.Generator().manual_seed(seed)
        y, k = torch.arange(n) % self.n_classes, torch.randint(2, (n,), generator=rng)
        z = self.mean[y, k] + self.var[y, k].sqrt() * torch.randn(n, self.dim, generator=rng)
        return Points(z, y)

    def bits(self, releases: int = 1) -> tuple[float, float]:
        """I(z; z_sent | y) under the true density, with its standard error: the equality case of the bound."""
        fresh, noise_var = self.points(40_000, 99), STD**2 / releases
        noise = torch.randn(fresh.z.shape, generator=torch.Generator().manual_seed(98))
        true = Mixture(torch.full((self.n_classes, 2), math.log(0.5)), self.mean, self.var)
        each = leak_nats(fresh.z, fresh.classes, true, noise, noise_var=noise_var) / math.log(2)
        return each.mean().item(), each.std().item() / len(each) ** 0.5

    def known(self, n: int) -> Encoded:
        return Encoded(CHANNEL, self.points(n, 1), self.points(n, 2), self.points(2000, 3), self.n_classes)


@pytest.mark.parametrize("releases", [1, 4])
def test_held_out_bits_are_no_less_than_the_truth_and_near_it(releases):
    here = MixtureWorld(dim=6, gap=3.0)
    truth, error = here.bits(releases)
    plain, chosen = readings(here.known(4000), releases=releases)
    assert chosen.groups >= 2
    span = chosen.interval
    assert span.high >= truth + 1 - 3 * error  # one bit for two classes
    assert span.mean < truth + 1.5
    assert plain.interval.mean > span.mean + 0.5


def test_in_sample_bits_fall_below_the_truth_and_held_out_ones_do_not():
    here = MixtureWorld(dim=128, n_classes=1, gap=0.0)
    truth, error = here.bits()
    few, fresh = here.points(60, 1), here.points(60, 2)
    flattered = readings(Encoded(CHANNEL, few, few, few, 1), sizes=(8,))[1]
    assert flattered.groups == 8
    assert flattered.interval.high < truth - 3 * error
    honest = readings(Encoded(CHANNEL, few, fresh, here.points(2000, 3), 1), sizes=(8,))
    assert all(reading.interval.low > truth + 3 * error for reading in honest)
    assert honest[1].groups == 1  # the third set sees that eight groups are worse


def test_in_a_linear_gaussian_world_it_is_the_log_determinant():
    this = world(side=4, features=6, noise_std=0.1)
    data = this.images(n=3000, n_victims=2000)
    heard = torch.eye(6).double() + this.matrix @ this.covariance @ this.matrix.T / 0.1**2
    truth = heard.logdet().item() / 2 / math.log(2)
    found = information(encoded(channel_of(this.client()), parts_of(data)))
    assert found[0].interval[1] >= truth + 1  # two labels that say nothing about x still cost a bit
    assert found[0].value < 1.25 * truth + 1
    assert found[0].kind is Kind.SAMPLED
    assert found[0].unit == "bits"
    assert found[0].interval[0] < found[0].value < found[0].interval[1]


def test_more_releases_say_more():
    here = MixtureWorld(dim=6).known(1000)
    assert information(here)[0].value < information(here, releases=4)[0].value < information(here, releases=64)[0].value


def test_no_label_needs_no_classes():
    this = world(side=4, features=6, noise_std=0.1)
    parts = parts_of(this.images(n=500, n_victims=500))
    alone = type(parts)(parts.fit, parts.choose, parts.read, n_classes=1)
    channel = channel_of(this.client())
    with_labels, without = (information(encoded(channel, each))[0].value for each in (parts, alone))
    assert without == pytest.approx(with_labels - 1, abs=0.3)


def test_one_bound_where_one_gaussian_is_best_and_two_where_it_is_not():
    assert len(information(MixtureWorld(dim=6, gap=3.0).known(2000))) == 2
    alone = MixtureWorld(dim=40, gap=0.0)
    alone.var[:] = 0.5
    assert [bound.name for bound in information(alone.known(100))] == ["information, a Gaussian a class"]


def test_the_channel_s_noise_is_the_client_s():
    assert channel_of(Client(torch.nn.Flatten(), Gaussian(std=0.25))).std == 0.25
