"""Products with Jacobians against Jacobians that are written out."""

import pytest
import torch
from torch import nn
from torch.func import jacrev, vmap

from splitveil.bounds import Probing, channel_of
from splitveil.bounds.jacobian import has_gradient, pullbacks
from splitveil.bounds.smoothing import smoothed
from splitveil.check import UsageError
from splitveil.data import Part
from splitveil.mechanisms import Chain, Clip, Gaussian
from splitveil.metrics import interval
from splitveil.randomness import SeededSource
from splitveil.split import Client

PART = Part(torch.randint(0, 256, (150, 1, 4, 4), dtype=torch.uint8), torch.zeros(150, dtype=torch.int64))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 5))


CHANNEL = channel_of(Client(network(), Chain([Clip(radius=0.3), Gaussian(std=0.1)])))


def jacobians(x: torch.Tensor) -> torch.Tensor:
    """J of every image, as [image, feature, pixel]."""
    CHANNEL.client.eval()
    return vmap(jacrev(lambda one: CHANNEL.front[0].send(CHANNEL.client.encode(one[None]), ())[0]))(x).flatten(2)


def test_all_directions_give_the_jacobian_exactly():
    rows = pullbacks(CHANNEL, PART, Probing(directions=None))
    written_out = jacobians(PART.images())
    torch.testing.assert_close(rows.transpose(0, 1), 5**0.5 * written_out, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(rows.square().sum(-1).mean(0), written_out.square().sum((1, 2)), atol=1e-5, rtol=1e-4)


def test_random_directions_give_its_norm_and_gram_matrix_on_average():
    rows = pullbacks(CHANNEL, PART, Probing(directions=64))
    written_out = jacobians(PART.images())
    gap = interval(rows.square().sum(-1).mean(0) - written_out.square().sum((1, 2)))
    assert gap.low <= 0 <= gap.high
    gram = torch.einsum("knp,knq->pq", rows, rows) / (64 * len(PART))
    wanted = torch.einsum("nfp,nfq->pq", written_out, written_out) / len(PART)
    assert (gram - wanted).norm() < 0.05 * wanted.norm()


def test_a_row_of_the_wrong_length_would_be_noticed():
    """Directions scaled by 1.1, as a wrong Hutchinson estimate would have it, fall outside the interval above."""
    rows = 1.1 * pullbacks(CHANNEL, PART, Probing(directions=64))
    gap = interval(rows.square().sum(-1).mean(0) - jacobians(PART.images()).square().sum((1, 2)))
    assert gap.low > 0


def test_smoothing_moves_where_the_jacobian_is_taken():
    rows = pullbacks(CHANNEL, PART.take(100), Probing(directions=None, width=0.8), "key")
    moved = smoothed(PART.take(100).images(), 0.8, SeededSource(0, "bounds", "key"))
    torch.testing.assert_close(rows.transpose(0, 1), 5**0.5 * jacobians(moved), atol=1e-5, rtol=1e-4)


def test_the_same_seed_gives_the_same_products():
    first, again, other = (pullbacks(CHANNEL, PART, Probing(seed=seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_no_gradient_is_left_behind():
    pullbacks(CHANNEL, PART, Probing())
    assert all(parameter.grad is None for parameter in CHANNEL.client.parameters())


class Cut(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach().flatten(1)


def test_an_encoder_without_gradients_is_told_in_one_line():
    channel = channel_of(Client(Cut(), Gaussian(std=0.1)))
    assert has_gradient(CHANNEL, PART)
    assert not has_gradient(channel, PART)
    with pytest.raises(UsageError, match="this encoder cuts them off"):
        pullbacks(channel, PART, Probing())
