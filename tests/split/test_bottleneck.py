"""The bottleneck: geometry from the features' shape."""

import pytest
import torch
from torch import nn

from splitveil.check import UsageError
from splitveil.split import Bottleneck


@pytest.mark.parametrize("shape", [(2, 16, 5, 7), (2, 9, 16), (2, 16)], ids=["maps", "tokens", "vectors"])
def test_squeeze_and_expand_undo_each_others_shape(shape: tuple[int, ...]) -> None:
    features = torch.randn(shape)
    squeeze, expand = Bottleneck(channels=3).build(features)
    z = squeeze(features)
    assert z.shape == tuple(3 if size == 16 else size for size in shape)
    assert expand(z).shape == shape


@pytest.mark.parametrize(("activation", "least"), [("sigmoid", 0.0), ("relu", 0.0), ("none", -torch.inf)])
def test_the_activation_sets_the_range(activation: str, least: float) -> None:
    z = Bottleneck(channels=4, activation=activation).build(10 * torch.randn(50, 16))[0](10 * torch.randn(50, 16))
    assert z.min() >= least
    assert bool((z <= 1).all()) is (activation == "sigmoid")
    assert bool((z < 0).any()) is (activation == "none")


def test_maps_use_three_by_three_convolutions_with_bias() -> None:
    squeeze, expand = Bottleneck(channels=8).build(torch.randn(1, 128, 8, 8))
    assert sum(p.numel() for p in squeeze.parameters()) == 128 * 8 * 9 + 8
    assert isinstance(expand, nn.Conv2d)
    assert expand.kernel_size == (3, 3)


def test_layers_take_the_dtype_of_the_features() -> None:
    squeeze, _ = Bottleneck().build(torch.randn(1, 4, dtype=torch.float64))
    assert {p.dtype for p in squeeze.parameters()} == {torch.float64}


def test_no_channels_are_refused() -> None:
    with pytest.raises(UsageError, match="bottleneck channels must be ≥ 1, got 0"):
        Bottleneck(channels=0)


def test_features_of_no_known_kind_are_refused() -> None:
    with pytest.raises(UsageError, match=r"maps, tokens or vectors, got features of shape \(2, 3, 4, 5\)"):
        Bottleneck().build(torch.randn(1, 2, 3, 4, 5))
