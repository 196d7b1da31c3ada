"""Bits on fresh data against worlds where the information is known, and in-sample ones that fall below it."""

import math

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from splitveil.bounds import Channel, Encoded, Kind, Points, channel_of, encoded, information, parts_of, readings
from splitveil.bounds.information import Reading
from splitveil.mechanisms import Gaussian, Identity
from splitveil.mixtures import Mixture, leak_nats
from splitveil.split import Client
from worlds.linear_gaussian import world

STD = 0.5
drawn = settings(max_examples=12, deadline=None, derandomize=True, phases=[Phase.generate])
CHANNEL = Channel(Client(torch.nn.Flatten(), Identity()), (), STD)


class MixtureWorld:
    """z of class c is a mixture of two Gaussians with known means and variances."""

    def __init__(self, dim: int, n_classes: int = 2, gap: float = 1.0, seed: int = 0) -> None:
        rng = torch.Generator().manual_seed(seed)
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


class Verdict:
    """Whether a mean of L lies on one side of the truth, 4 standard errors (of both) away: wrong once in 30,000."""

    def __init__(self, bits: torch.Tensor, truth: float, error: float) -> None:
        self.apart = bits.mean().item() - truth
        self.least = 4 * math.hypot(bits.std().item() / len(bits) ** 0.5, error)

    @property
    def is_below(self) -> bool:
        return self.apart < -self.least

    @property
    def is_above(self) -> bool:
        return self.apart > self.least


@drawn
@given(
    dim=st.integers(120, 200),
    n_classes=st.integers(1, 3),
    gap=st.floats(0.0, 1.0),
    each=st.integers(40, 64),
    releases=st.sampled_from([4, 16]),
    seed=st.integers(0, 10**6),
)
def test_in_every_mixture_world_held_out_bits_are_no_less_than_the_truth_and_in_sample_bits_are(
    dim, n_classes, gap, each, releases, seed
):
    """Few points of many dimensions, up to eight groups a class: read on other points, and on those fitted."""
    here = MixtureWorld(dim, n_classes, gap, seed)
    truth, error = here.bits(releases)
    few, fresh, other = here.points(each * n_classes, 1), here.points(1000, 2), here.points(2000, 3)
    known = math.log2(n_classes), truth, error
    for choose in (fresh, few):  # whatever chooses the number of groups, others must read
        for reading in readings(Encoded(CHANNEL, few, choose, other, n_classes), releases=releases, sizes=(8,)):
            assert judged(reading, *known).is_above
    flattered = readings(Encoded(CHANNEL, few, few, few, n_classes), releases=releases, sizes=(8,))[1]
    assert flattered.groups == 8
    assert judged(flattered, *known).is_below


@drawn
@given(
    dim=st.integers(1, 24),
    n_classes=st.integers(1, 4),
    gap=st.floats(0.0, 4.0),
    n=st.integers(300, 3000),
    releases=st.sampled_from([1, 4, 16]),
    seed=st.integers(0, 10**6),
)
def test_in_every_mixture_world_held_out_bits_of_many_points_are_no_less_than_the_truth(
    dim, n_classes, gap, n, releases, seed
):
    """Where densities fit well the bound is tight, and a reading that flattered by a few hundredths would be seen."""
    here = MixtureWorld(dim, n_classes, gap, seed)
    truth, error = here.bits(releases)
    plain, chosen = readings(here.known(n), releases=releases)
    for reading in (plain, chosen):
        assert not judged(reading, math.log2(n_classes), truth, error).is_below
    assert chosen.interval.mean <= plain.interval.mean + 0.1


def judged(reading: Reading, labels: float, truth: float, error: float) -> Verdict:
    return Verdict(reading.bits - labels, truth, error)


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
