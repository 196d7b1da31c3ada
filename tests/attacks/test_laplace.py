"""Laplace noise as it is: against float64 integrals, chain by chain, and what a search gains from it."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from splitveil.attacks import OptimizationAttack, Pairs, Seen, Threat, channel, grant, oracle_of
from splitveil.attacks.channel import Channel, channel_of
from splitveil.attacks.laplace import NORMAL, ROUNDING, laplace_scale, surprise
from splitveil.mechanisms import Chain, Clip, Dropout, Gaussian, Laplace, Mechanism
from splitveil.metrics import interval, mse
from splitveil.randomness import SeededSource
from splitveil.split import Client
from worlds.linear_gaussian import Matrix, world

WORLD = world()
GAPS = torch.tensor([-3.0, -0.4, 0.0, 0.01, 0.3, 1.0, 5.0, 20.0])


def reference(gap: Tensor, scale: float, variance: float) -> Tensor:
    """−log 2b p in float64: the integral over the normal part, on a fine grid."""
    g = torch.linspace(-25, 25, 40_001, dtype=torch.float64)
    both = torch.exp(-g.square() / 2 - (gap.double()[..., None] - math.sqrt(variance) * g).abs() / scale)
    return -(torch.trapezoid(both, g) / math.sqrt(2 * math.pi)).log()


@pytest.mark.parametrize(("scale", "variance"), [(1.0, 0.01), (1.0, 1.0), (0.2, 0.3), (0.05, 1.0)])
def test_the_surprise_is_the_integral_s_and_its_slope_the_difference_quotient_s(scale, variance):
    gap = GAPS * math.sqrt(scale**2 + variance)
    value, slope = surprise(gap, scale, torch.tensor(variance))
    true = variance + (ROUNDING * scale) ** 2
    torch.testing.assert_close(value.double(), reference(gap, scale, true), rtol=2e-5, atol=1e-4)
    step = 1e-2 * math.sqrt(true)
    ahead, behind = (reference(gap.double() + side * step, scale, true) for side in (1, -1))
    torch.testing.assert_close(slope.double(), (ahead - behind) / (2 * step), rtol=1e-3, atol=1e-4)


def test_without_other_noise_it_is_the_absolute_gap_but_near_zero():
    gap = 0.2 * GAPS
    value, slope = surprise(gap, 0.2)
    is_far = gap.abs() > ROUNDING * 0.2
    torch.testing.assert_close(value[is_far], gap[is_far].abs() / 0.2)
    torch.testing.assert_close(slope[is_far], gap[is_far].sign() / 0.2)
    assert (value - gap.abs() / 0.2).abs().max() <= ROUNDING / 2 + 1e-6
    assert slope[2] == 0


@pytest.mark.parametrize("variance", [0.0, 1e-4, 1.0, 1e4, 1e10])
def test_it_is_even_its_slope_is_odd_and_bounded_and_nothing_overflows(variance):
    gap = torch.cat([torch.zeros(1), torch.logspace(-15, 15, 61)])
    (value, slope), (left, down) = (surprise(side * gap, 1.0, variance) for side in (1, -1))
    assert torch.equal(value, left)
    assert torch.equal(slope, -down)
    assert value.isfinite().all()
    assert (value.diff() >= -1e-4 * value[1:].abs().clamp_min(1)).all()
    if variance <= NORMAL:
        assert slope.abs().max() <= 1


def test_where_doubt_is_far_larger_than_the_noise_it_is_normal_and_no_step_leads_there():
    for a in (0.99 * NORMAL, 1.01 * NORMAL):
        gap = GAPS[:-1] * a
        value, slope = surprise(gap, 1.0, torch.tensor(a**2))
        torch.testing.assert_close(slope, gap / (a**2 + 2), rtol=2e-3, atol=0)
        wanted = gap.square() / (2 * (a**2 + 2)) + math.log(math.pi / 2 * (a**2 + 2)) / 2
        torch.testing.assert_close(value, wanted, rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("mechanism", "scale"),
    [
        (Gaussian(std=0.1), 0.0),
        (Dropout(rate=0.1), 0.0),
        (Chain([Clip(radius=1.0, norm=1), Laplace(scale=0.3)]), 0.3),
        (Chain([Laplace(scale=0.1), Chain([Laplace(scale=0.2), Gaussian(std=1.0)])]), 0.2),
    ],
    ids=str,
)
def test_the_scale_is_that_of_the_largest_laplace_part(mechanism, scale):
    assert laplace_scale(mechanism) == scale


def heard(mechanism: Mechanism, releases: int, **options: object) -> tuple[Channel, Tensor, Tensor]:
    """A channel, images, and releases of other images."""
    client = Client(Matrix(WORLD.matrix), mechanism)
    own = WORLD.part(5, 1).images()
    z_sent = oracle_of(client).release(own, source=SeededSource(0), releases=releases)
    usual = {"loss": "likelihood", "draws": 1, "seed": 0}
    return channel_of(client, Pairs(own, Seen(z_sent)), **(usual | options)), WORLD.part(5, 0).images(), z_sent


@pytest.mark.parametrize("releases", [1, 7])
@pytest.mark.parametrize(("clip", "normal"), [(50.0, 0.0), (2.0, 0.0), (2.0, 0.3)])
def test_the_misfit_is_minus_the_log_likelihood_of_every_release(releases, clip, normal):
    noise = [Laplace(scale=0.2), Gaussian(std=normal)] if normal else [Laplace(scale=0.2)]
    this, x, z_sent = heard(Chain([Clip(radius=clip, norm=1), *noise]), releases)
    x = x.requires_grad_()
    clipped = Clip(radius=clip, norm=1).send(this.encode(x), ())
    if normal:
        wanted = reference((clipped - z_sent).detach(), 0.2, normal**2 + (ROUNDING * 0.2) ** 2).sum((0, 2))
    else:
        wanted = ((clipped - z_sent).abs() / 0.2).sum((0, 2)).double()
    found = this.misfit(x, this.hear(z_sent))
    torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-3, atol=0)
    (slope,) = torch.autograd.grad(found.sum(), x)
    if not normal and clip == 50.0:  # nothing is clipped
        pull = (clipped.detach() - z_sent).div(ROUNDING * 0.2).clamp(-1, 1).sum(0) / 0.2
        torch.testing.assert_close(slope.flatten(1), pull @ WORLD.matrix.float(), rtol=1e-4, atol=1e-3)


def test_doubt_common_to_all_releases_counts_once():
    """As it does for normal noise, where the mean of T releases has variance s²/T + e."""
    scale, doubt = 1e-4, 0.3
    this, x, z_sent = heard(Laplace(scale=scale), 9)
    normal = replace(this, scale=0.0)
    slopes = []
    for each in (this, normal):
        moved = x.clone().requires_grad_()
        slopes.append(torch.autograd.grad(each.misfit(moved, each.hear(z_sent), more=doubt).sum(), moved)[0])
    torch.testing.assert_close(*slopes, rtol=1e-3, atol=1e-4)


def test_a_dropped_coordinate_is_explained_by_the_draw_that_dropped_it():
    client = Client(nn.Flatten(), Chain([Dropout(rate=0.5), Laplace(scale=0.1)]))
    this = Channel(client, 2 * 0.1**2, draws=400, seed=0, scale=0.1)
    x = torch.full((1, 1, 1, 2), 0.6, requires_grad=True)
    z_sent = torch.tensor([[[0.03, 0.65]], [[0.62, 0.55]]])
    density = 0.5 * ((-z_sent.abs() / 0.1).exp() + (-(x.flatten(1) - z_sent).abs() / 0.1).exp())
    wanted = -density.log().sum() - 4 * math.log(400)  # the mean over draws as a sum
    found = this.misfit(x, this.hear(z_sent))
    torch.testing.assert_close(found[0], wanted, atol=0.3, rtol=0)
    ours, pull = (torch.autograd.grad(each.sum(), x)[0].flatten() for each in (found, wanted))
    torch.testing.assert_close(ours, pull, atol=0.1, rtol=0)
    assert pull[0] == pytest.approx(-10, abs=0.2)  # what arrived as 0.03 does not pull against 0.62


@pytest.mark.parametrize("mechanism", [Gaussian(std=0.2), Chain([Dropout(rate=0.4), Gaussian(std=0.2)])], ids=str)
def test_normal_noise_is_what_it_was_bit_for_bit(mechanism):
    this, x, z_sent = heard(mechanism, 3, draws=4)
    again = this.hear(z_sent).rows(torch.arange(5))
    found = this.misfit(x, again, more=0.01)
    if isinstance(mechanism, Gaussian):
        gap = (this.encode(x) - z_sent.mean(0)).square()
        assert torch.equal(found, (gap / (2 * (0.2**2 / 3 + 0.01))).flatten(1).sum(1))
    assert torch.equal(found, this.misfit(x, this.hear(z_sent), more=0.01))
    assert this.scale == 0


def test_who_knows_no_noise_knows_no_laplace_noise():
    assert heard(Laplace(scale=0.2), 2)[0].scale == 0.2
    assert heard(Laplace(scale=0.2), 2, loss="features")[0].scale == 0


@pytest.mark.parametrize("more", [0.0, 0.1])
def test_no_more_is_kept_for_many_releases_than_for_one(more):
    kept: dict[int, int] = {}
    for releases in (1, 64):
        this, x, z_sent = heard(Laplace(scale=0.2), releases)
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, into=sizes: into.append(t.numel()) or t, lambda t: t):
            this.misfit(x.requires_grad_(), this.hear(z_sent), more=more)
        kept[releases] = sum(sizes)
    assert kept[1] == kept[64]
    many = this.hear(z_sent).rows(torch.arange(5).repeat(3))
    assert many.z_sent.data_ptr() == z_sent.data_ptr()  # repeated, not copied
    assert len(many) == 15
    whole = this.misfit(x.repeat(3, 1, 1, 1), many, more=more)
    torch.testing.assert_close(whole, this.misfit(x, this.hear(z_sent), more=more).repeat(3))
    torch.testing.assert_close(this.misfit(x[2:4], many.rows(slice(2, 4)), more=more), whole[2:4])
    assert this.n_held(z_sent) < 6 * replace(this, scale=0.0).n_held(z_sent) + z_sent[:, 0].numel()


def test_a_search_that_knows_the_shape_of_the_noise_errs_less(monkeypatch):
    """0.77 of the error that the same variance in a normal shape leaves, with sixteen releases."""
    wide = world(features=128)
    oracle = oracle_of(Client(Matrix(wide.matrix), Laplace(scale=0.3)))
    parts = {"auxiliary": wide.part(2000, 0, "auxiliary"), "selection": wide.part(300, 0, "selection")}
    known, x = grant(Threat(releases=16), oracle=oracle, **parts), wide.part(200, 0, "victims").images()
    seen = Seen(oracle.release(x, source=SeededSource(1), releases=16))
    attack = OptimizationAttack(prior="gaussian", start="mean", steps=80, n_tuned=32)
    true = mse(x, attack.fit(known, seed=0)(seen))
    monkeypatch.setattr(channel, "laplace_scale", lambda mechanism: 0.0)
    normal = mse(x, attack.fit(known, seed=0)(seen))
    assert interval(normal - true).low > 0
    assert true.mean() < 0.82 * normal.mean()
