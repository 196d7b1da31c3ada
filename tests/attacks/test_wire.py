"""What a mechanism's parts leave to be read: zeros that were dropped, what top-k kept, noise that something follows."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from splitveil.attacks import OptimizationAttack, Pairs, Ridge, Seen, Threat, grant, oracle_of
from splitveil.attacks.channel import Channel, channel_of
from splitveil.attacks.wire import is_scattered, wire_of
from splitveil.mechanisms import Chain, Clip, Dropout, Gaussian, Identity, Laplace, Mechanism, Quantize, TopK
from splitveil.metrics import mse
from splitveil.randomness import SeededSource, stream
from splitveil.split import Client
from worlds.linear_gaussian import Matrix, world

NOISE, DROP, TOP = Gaussian(std=0.2), Dropout(rate=0.4), TopK(keep=0.25)
CLIP, STEPS = Clip(radius=1.0), Quantize(levels=4, low=-1.0, high=1.0)
WORLD, WIDE = world(side=8, features=24), world(side=8, features=60)


@pytest.mark.parametrize(
    ("mechanism", "before", "n_removals"),
    [
        (NOISE, NOISE, 0),
        (Identity(), Identity(), 0),
        (DROP, Identity(), 1),
        (Chain([NOISE, TOP, Identity(), DROP]), NOISE, 2),
        (Chain([CLIP, Chain([NOISE, DROP])]), Chain([CLIP, NOISE]), 1),
        (Chain([DROP, NOISE]), Chain([DROP, NOISE]), 0),
    ],
    ids=str,
)
def test_removals_at_the_end_are_taken_off(mechanism, before, n_removals):
    wire = wire_of(mechanism)
    assert (repr(wire.before), len(wire.removals)) == (repr(before), n_removals)
    assert wire.before is mechanism or n_removals


@pytest.mark.parametrize(
    ("parts", "followed", "zeros"),
    [
        ([NOISE], False, False),
        ([CLIP, NOISE, Laplace(scale=0.1)], False, False),
        ([NOISE, CLIP], True, False),
        ([NOISE, STEPS, NOISE], True, False),
        ([NOISE, TOP], False, False),
        ([DROP, CLIP], False, True),
        ([NOISE, DROP, CLIP], True, True),
        ([DROP, NOISE, CLIP], True, False),
        ([DROP, STEPS], False, False),
    ],
    ids=lambda each: "-".join(part.name for part in each) if isinstance(each, list) else str(each),
)
def test_what_follows_noise_and_what_shows_zeros(parts, followed, zeros):
    wire = wire_of(Chain(parts))
    assert (wire.is_followed, wire.shows_zeros) == (followed, zeros)


def test_what_is_random_beside_additive_noise():
    assert [is_scattered(m) for m in (Identity(), NOISE, DROP, TOP)] == [False, False, True, False]
    assert is_scattered(Chain([NOISE, DROP]))
    assert not is_scattered(Chain([STEPS, NOISE]))


def slope(channel: Channel, x: torch.Tensor, z_sent: torch.Tensor, **more: float) -> torch.Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(channel.misfit(x, channel.hear(z_sent), **more).sum(), x)[0].flatten(1)


@pytest.mark.parametrize("noise", [NOISE, Laplace(scale=0.2)], ids=str)
@pytest.mark.parametrize("removal", [DROP, TOP], ids=str)
def test_what_arrived_counts_by_the_noise_alone_and_what_was_dropped_pulls_nowhere(noise, removal):
    """As if the noise alone had sent what arrived, at every x; of the rest, x may not be what top-k sends."""
    plain = Channel(Client(nn.Flatten(), noise), noise.noise_std**2, scale=getattr(noise, "scale", 0.0))
    channel = replace(plain, client=Client(nn.Flatten(), Chain([noise, removal])))
    x = torch.rand(3, 1, 2, 8, generator=stream(0, "x"))
    z_sent = oracle_of(channel.client).release(x.flip(0), source=SeededSource(0), releases=5)
    kept = torch.zeros(3, 16, dtype=torch.bool) if removal is DROP else TOP.send(x.flatten(1), ()) != 0
    wanted = torch.zeros(3, 16)
    for release in z_sent:
        heard = torch.where((release != 0) | kept, release, x.flatten(1))  # a gap of 0 elsewhere
        wanted = wanted + slope(plain, x, heard[None], more=5 * 0.01)
    torch.testing.assert_close(slope(channel, x, z_sent, more=0.01), wanted, rtol=1e-4, atol=1e-4)
    never = (z_sent == 0).all(0)
    assert torch.equal(wanted[never] != 0, kept[never])  # by top-k x may not send what never came
    assert not never.all()


def test_top_k_pulls_towards_what_arrived_where_x_would_not_send_it():
    channel = Channel(Client(nn.Flatten(), TopK(keep=1)), 1.0)
    x, z_sent = torch.tensor([[[[0.9, 0.2]]]]), torch.tensor([[[0.0, 0.8]]])
    torch.testing.assert_close(slope(channel, x, z_sent), torch.tensor([[0.9, 0.2 - 0.8]]))


FOLLOWED: list[Mechanism] = [
    Chain([Gaussian(std=0.3), Clip(radius=1.0)]),
    Chain([Gaussian(std=0.3), Quantize(levels=4, low=-1.0, high=1.0)]),
    Chain([Laplace(scale=0.2), Clip(radius=1.0)]),
]


@pytest.mark.parametrize("mechanism", FOLLOWED, ids=["clip", "quantize", "laplace"])
def test_noise_that_something_follows_has_the_mean_and_size_with_which_it_arrives(mechanism):
    client = Client(Matrix(WORLD.matrix), mechanism)
    x = WORLD.part(200, 0).images()
    z_sent = oracle_of(client).release(x, source=SeededSource(0), releases=400)
    channel = channel_of(client, Pairs(x, Seen(z_sent[:1])), loss="likelihood", draws=8, seed=0)
    assert channel.variance == pytest.approx(z_sent.var(0).mean().item(), rel=0.05)
    assert not 0.9 < channel.variance / mechanism.noise_std**2 < 1.1
    gap = (channel.expect(x) - z_sent.mean(0)).square().mean()
    naive = (mechanism.send(client.encode(x), (torch.zeros(200, 24),)) - z_sent.mean(0)).square().mean()
    assert gap < 0.2 * channel.variance
    assert gap < 0.7 * naive
    assert channel.scale == 0


def errors(mechanism: Mechanism, attack: OptimizationAttack | Ridge) -> float:
    client = Client(Matrix(WIDE.matrix), mechanism)
    parts = {"auxiliary": WIDE.part(600, 0, "auxiliary"), "selection": WIDE.part(100, 0, "selection")}
    known = grant(Threat(), oracle=oracle_of(client), **parts)
    x = WIDE.part(150, 0, "victims").images()
    seen = Seen(oracle_of(client).release(x, source=SeededSource(3)))
    return mse(x, attack.fit(known, seed=0)(seen)).mean().item()


@pytest.mark.parametrize(
    ("mechanism", "most"),
    [(Chain([Gaussian(std=0.3), Dropout(rate=0.5)]), 0.91), (Chain([Gaussian(std=0.1), TopK(keep=0.1)]), 1.1)],
    ids=["dropout", "top-k"],
)
def test_a_search_hears_what_the_removal_left(mechanism, most):
    search = OptimizationAttack(prior="gaussian", start="mean", steps=80, n_tuned=24)
    assert errors(mechanism, search) < most * errors(mechanism, Ridge())
