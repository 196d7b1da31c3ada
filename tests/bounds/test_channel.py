"""Which mechanisms are Gaussian channels, and with which σ."""

import math

import pytest
import torch
from torch import nn

from splitveil.bounds import channel_of
from splitveil.bounds.channel import obstacle, roughness
from splitveil.check import UsageError
from splitveil.data import Part
from splitveil.mechanisms import Chain, Clip, Dropout, Gaussian, Identity, Laplace, Mechanism, Quantize, TopK
from splitveil.split import Client

NOISE = Gaussian(std=0.3)


def client(mechanism: Mechanism) -> Client:
    return Client(nn.Flatten(), mechanism)


@pytest.mark.parametrize(
    ("mechanism", "front", "std"),
    [
        (NOISE, 0, 0.3),
        (Chain([Clip(radius=2.0), NOISE]), 1, 0.3),
        (Chain([Chain([Clip(radius=2.0), NOISE]), Identity(), Gaussian(std=0.4)]), 1, 0.5),  # noises add up
        (Chain([NOISE, Quantize(levels=4), Gaussian(std=0.4)]), 0, 0.3),  # later noise is behind a rounding
        (Chain([TopK(keep=2), NOISE, Dropout(rate=0.5)]), 1, 0.3),
    ],
)
def test_noise_ends_the_front_and_the_rest_is_post_processing(mechanism, front, std):
    channel = channel_of(client(mechanism))
    assert len(channel.front) == front
    assert channel.std == pytest.approx(std)
    assert channel.std_after(4) == pytest.approx(std / 2)


@pytest.mark.parametrize(
    ("mechanism", "reason"),
    [
        (Identity(), "need gaussian noise, the mechanism is identity"),
        (Laplace(scale=0.1), "need gaussian noise, the mechanism is laplace"),
        (Chain([Dropout(rate=0.5), NOISE]), "nothing random before the gaussian noise, got dropout"),
        (Chain([Laplace(scale=1.0), NOISE]), "nothing random before the gaussian noise, got laplace"),
    ],
)
def test_other_mechanisms_are_refused_in_one_line(mechanism, reason):
    with pytest.raises(UsageError, match=reason) as caught:
        channel_of(client(mechanism))
    assert "\n" not in str(caught.value)


def test_features_that_jump_are_not_smooth():
    assert roughness(Chain([Clip(radius=1.0), NOISE, Quantize(levels=2)])) is None
    for part in (Quantize(levels=2), TopK(keep=1)):
        assert obstacle(Chain([part, NOISE])) is None
        assert part.name in roughness(Chain([part, NOISE]))


def test_features_are_those_deployed_and_the_client_is_left_as_it_was():
    encoder = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Dropout(0.9))
    encoder[1].eval()
    part = Part(torch.randint(0, 256, (600, 1, 2, 2), dtype=torch.uint8), torch.zeros(600, dtype=torch.int64))
    channel = channel_of(Client(encoder, Chain([Clip(radius=0.5), NOISE])))
    z = channel.all_features(part)
    assert z.norm(dim=1).max() <= 0.5
    flat = part.images().flatten(1) / math.sqrt(1 + 1e-5)  # batch norm as it starts
    torch.testing.assert_close(z, Clip(radius=0.5).send(flat, ()))
    assert [part.training for part in encoder] == [True, False, True]
