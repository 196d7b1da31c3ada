"""The misfit that a search descends, against the likelihood written out."""

import torch
from torch import nn

from splitveil.attacks import (
    Pairs,
    Seen,
    oracle_of,
)
from splitveil.attacks.channel import Channel, channel_of
from splitveil.mechanisms import Chain, Clip, Dropout, Gaussian
from splitveil.randomness import SeededSource
from splitveil.split import Client
from worlds.linear_gaussian import Matrix
from worlds.searches import WORLD


def test_the_misfit_of_additive_noise_is_the_sum_over_releases():
    client = Client(Matrix(WORLD.matrix), Chain([Clip(radius=2.0), Gaussian(std=0.2)]))
    x = WORLD.part(5, 0).images()
    z_sent = oracle_of(client).release(WORLD.part(5, 1).images(), source=SeededSource(0), releases=3)
    channel = channel_of(client, Pairs(x, Seen(z_sent)), loss="likelihood", draws=1, seed=0)
    clipped = Clip(radius=2.0).send(client.encode(x), ())
    per_release = ((clipped - z_sent).square() / (2 * 0.2**2)).sum((0, 2))
    ours, other = channel.misfit(x, channel.hear(z_sent)), channel.misfit(x.flip(0), channel.hear(z_sent))
    wanted = per_release - ((z_sent - z_sent.mean(0)).square() / (2 * 0.2**2)).sum((0, 2))  # a constant of x
    torch.testing.assert_close(ours, wanted)
    assert not torch.allclose(ours, other)


def test_the_misfit_of_a_scattered_mechanism_averages_likelihoods_over_its_draws():
    client = Client(nn.Flatten(), Chain([Dropout(rate=0.5), Gaussian(std=0.1)]))
    channel = Channel(client, 0.1**2, draws=400, seed=0)
    x, z_sent = torch.full((1, 1, 1, 2), 0.6), torch.tensor([[[0.0, 0.65]]])
    density = [0.5 * torch.exp(-((torch.tensor([0.0, 0.6]) - z) ** 2) / 0.02).sum() for z in (0.0, 0.65)]
    wanted = -torch.stack(density).log().sum() - 2 * torch.tensor(400.0).log()  # the mean over draws as a sum
    torch.testing.assert_close(channel.misfit(x, channel.hear(z_sent))[0], wanted, atol=0.3, rtol=0)


def test_doubt_common_to_all_releases_counts_once_also_where_each_release_counts():
    """With dropout that drops nothing, the releases say what their mean does, whose variance is s²/T + e."""
    z_sent = oracle_of(WORLD.client()).release(WORLD.part(5, 1).images(), source=SeededSource(0), releases=9)
    slopes = []
    for mechanism in (Gaussian(std=0.2), Chain([Dropout(rate=1e-9), Gaussian(std=0.2)])):
        channel = Channel(Client(Matrix(WORLD.matrix), mechanism), 0.2**2)
        x = WORLD.part(5, 0).images().requires_grad_()
        misfit = channel.misfit(x, channel.hear(z_sent), more=0.3)
        slopes.append(torch.autograd.grad(misfit.sum(), x)[0])
    assert slopes[0].abs().max() > 0.1
    torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-5)
