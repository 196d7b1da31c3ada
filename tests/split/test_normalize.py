"""Normalization: per channel, and only for the channels it was made for."""

import pytest
import torch

from splitveil.check import UsageError
from splitveil.split import Normalize


def test_each_channel_is_shifted_and_scaled() -> None:
    x = torch.rand(2, 3, 4, 4)
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.6, 0.7]
    by_hand = torch.stack([(x[:, c] - mean[c]) / std[c] for c in range(3)], dim=1)
    torch.testing.assert_close(Normalize(mean=mean, std=std)(x), by_hand)


def test_it_travels_in_the_state_dict() -> None:
    other = Normalize(mean=[0.0], std=[1.0])
    other.load_state_dict(Normalize(mean=[0.25], std=[0.5]).state_dict())
    assert torch.equal(other(torch.ones(1, 1, 2, 2)), torch.full((1, 1, 2, 2), 1.5))


def test_other_channels_are_refused_and_not_broadcast() -> None:
    with pytest.raises(UsageError, match="made for 3 channels, got images with 1"):
        Normalize(mean=[0.5] * 3, std=[0.5] * 3)(torch.rand(2, 1, 4, 4))


@pytest.mark.parametrize(("mean", "std"), [([0.5], [0.5, 0.5]), ([], []), ([0.5], [0.0]), ([0.5], [-1.0])])
def test_impossible_statistics_are_refused(mean: list[float], std: list[float]) -> None:
    with pytest.raises(UsageError, match="normalize"):
        Normalize(mean=mean, std=std)
