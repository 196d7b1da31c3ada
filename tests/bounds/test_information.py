"""Bits on fresh data against worlds where the information is known, and in-sample ones that fall below it."""

import math

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from splitveil.bounds import Channel, Encoded, Kind, Points, channel_of, encoded, information, parts_of, readings
from splitveil.bounds.full_covariance import MOST, SHRINKAGES
from splitveil.bounds.information import Density, Reading
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
    assert chosen.density.groups >= 2
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
        for reading in readings(
            Encoded(CHANNEL, few, choose, other, n_classes), releases=releases, sizes=(8,), shrinkages=()
        ):
            assert judged(reading, *known).is_above
    flattered = readings(Encoded(CHANNEL, few, few, few, n_classes), releases=releases, sizes=(8,), shrinkages=())[1]
    assert flattered.density.groups == 8
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
    flattered = readings(Encoded(CHANNEL, few, few, few, 1), sizes=(8,), shrinkages=())[1]
    assert flattered.density.groups == 8
    assert flattered.interval.high < truth - 3 * error
    honest = readings(Encoded(CHANNEL, few, fresh, here.points(2000, 3), 1), sizes=(8,), shrinkages=())
    assert all(reading.interval.low > truth + 3 * error for reading in honest)
    assert honest[1].density.groups == 1  # the third set sees that eight groups are worse


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


class CorrelatedWorld(MixtureWorld):
    """z of class c is one Gaussian whose features hang together: a few directions carry most of it."""

    def __init__(self, dim: int, n_classes: int = 2, rank: int = 3, seed: int = 0) -> None:
        super().__init__(dim, n_classes, seed=seed)
        rng = torch.Generator().manual_seed(seed + 7)
        factor = torch.randn(n_classes, dim, rank, generator=rng).double()
        self.covariance = factor @ factor.mT + 0.05 * torch.eye(dim).double()

    def points(self, n: int, seed: int) -> Points:
        rng = torch.Generator().manual_seed(seed)
        y, root = torch.arange(n) % self.n_classes, torch.linalg.cholesky(self.covariance)
        z = torch.einsum("nij,nj->ni", root[y], torch.randn(n, self.dim, generator=rng).double())
        return Points((self.mean[y, 0] + z).float(), y)

    def exact_bits(self, releases: int = 1) -> float:
        """½ log det (I + S T/σ²), the mean over classes."""
        heard = torch.eye(self.dim).double() + self.covariance * releases / STD**2
        return heard.logdet().mean().item() / 2 / math.log(2)


@pytest.mark.parametrize(("n_classes", "releases"), [(1, 1), (2, 1), (2, 16)])
def test_features_that_hang_together_are_read_with_their_covariance(n_classes, releases):
    here = CorrelatedWorld(dim=32, n_classes=n_classes)
    truth = here.exact_bits(releases) + math.log2(n_classes)
    plain, chosen = readings(here.known(2000), releases=releases)
    assert chosen.density.shrinkage is not None
    assert plain.density == Density()
    assert chosen.interval.high >= truth
    assert not judged(chosen, 0.0, truth, 0.0).is_below
    assert chosen.interval.mean < truth + 0.25 * (plain.interval.mean - truth)
    names = [bound.name for bound in information(here.known(2000), releases=releases)]
    assert names[0] == "information, a Gaussian a class"
    assert names[-1] == f"information, a Gaussian a class, full covariance shrunk by {chosen.density.shrinkage:g}"
    assert all("mixture" in name for name in names[1:-1])


@drawn
@given(dim=st.integers(2, 60), each=st.integers(5, 80), rank=st.integers(1, 8), seed=st.integers(0, 10**6))
def test_in_every_correlated_world_no_shrinkage_flatters_what_it_was_not_fitted_to(dim, each, rank, seed):
    """Fewer points than dimensions, too: whichever shrinkage is taken, even by those it was fitted to."""
    here = CorrelatedWorld(dim, 2, rank, seed)
    few, truth = here.points(2 * each, 1), here.exact_bits(4)
    for shrinkage in SHRINKAGES:
        for choose in (few, here.points(200, 2)):
            known = Encoded(CHANNEL, few, choose, here.points(1000, 3), 2)
            for reading in readings(known, releases=4, sizes=(1,), shrinkages=(shrinkage,)):
                assert not judged(reading, 1.0, truth, 0.0).is_below


def test_a_full_covariance_read_on_its_own_points_flatters():
    here = MixtureWorld(dim=128, n_classes=1, gap=0.0)
    few = here.points(60, 1)
    flattered = readings(Encoded(CHANNEL, few, few, few, 1), sizes=(1,))[1]
    assert flattered.density.shrinkage == min(SHRINKAGES)
    assert judged(flattered, 0.0, *here.bits()).is_below


def test_features_that_are_many_go_without_it_and_say_so():
    here = MixtureWorld(dim=MOST + 1)
    found = information(here.known(20), sizes=(1,))
    assert [bound.name for bound in found] == [
        f"information, a Gaussian a class; full covariance not tried: more than {MOST} features"
    ]


def test_a_class_without_images_to_fit_to_is_read_all_the_same():
    here = CorrelatedWorld(dim=4)
    known = here.known(100)
    one = Points(known.fit.z, torch.zeros_like(known.fit.classes))
    read = readings(Encoded(CHANNEL, one, known.choose, known.read, 2), sizes=(1,))
    assert all(reading.bits.isfinite().all() for reading in read)
