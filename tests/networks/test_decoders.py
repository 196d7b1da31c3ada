"""The decoder ladder: shapes, size of the literature's rung, calibration, labels."""

import pytest
import torch

from splitveil.check import UsageError
from splitveil.networks.decoders import RUNGS, Decoder
from splitveil.randomness import stream

FEATURES = {
    "map": (8, 8, 8),
    "wide map": (16, 4, 8),
    "map of odd size": (3, 7, 7),
    "map larger than the image": (2, 40, 40),
    "vector": (24,),
    "grid of tokens": (16, 12),
    "grid with a class token": (17, 12),
    "irregular tokens": (7, 12),
}


def count(network: torch.nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("features", FEATURES.values(), ids=list(FEATURES))
@pytest.mark.parametrize("image_shape", [(3, 32, 32), (1, 28, 20)])
def test_any_features_become_an_image(rung, features, image_shape):
    network = Decoder(rung, feature_shape=features, image_shape=image_shape)
    z_sent = torch.randn(2, *features, generator=stream(0, "z"))
    x_hat = network(z_sent)
    assert x_hat.shape == (2, *image_shape)
    assert 0 <= x_hat.min() <= x_hat.max() <= 1
    assert (x_hat[0] - x_hat[1]).abs().max() > 1e-4  # it reads its features
    x_hat.square().mean().backward()
    assert all(p.grad is not None for p in network.parameters())


def test_the_residual_rung_has_the_literature_s_size():
    assert count(Decoder("residual", feature_shape=(8, 8, 8), image_shape=(3, 32, 32))) == pytest.approx(
        0.71e6, rel=0.01
    )


def test_an_unfitted_decoder_is_near_the_mean_image_after_its_trunk_is_silenced():
    network = Decoder("conv", feature_shape=(4, 7, 7), image_shape=(1, 28, 28)).eval()
    x = torch.rand(50, 1, 28, 28, generator=stream(0, "x")) * 0.5 + 0.1
    z = torch.randn(50, 4, 7, 7, generator=stream(0, "z")) * 30 + 100
    network.calibrate(x, z)
    torch.nn.init.zeros_(network.trunk.rest[-2].weight)
    torch.nn.init.zeros_(network.trunk.rest[-2].bias)
    torch.testing.assert_close(network(z)[0], x.mean(0), atol=1e-5, rtol=0)


@pytest.mark.parametrize("features", FEATURES.values(), ids=list(FEATURES))
def test_calibration_makes_the_units_of_the_features_irrelevant(features):
    torch.manual_seed(0)
    network = Decoder("conv", feature_shape=features, image_shape=(1, 28, 28)).eval()
    x, z = torch.rand(20, 1, 28, 28, generator=stream(0, "x")), torch.randn(20, *features, generator=stream(0, "z"))
    network.calibrate(x, z)
    plain = network(z)
    network.calibrate(x, 100 * z + 7)
    torch.testing.assert_close(network(100 * z + 7), plain, atol=1e-4, rtol=0)


def test_a_constant_channel_does_not_explode():
    network = Decoder("conv", feature_shape=(4,), image_shape=(1, 28, 28)).eval()
    z = torch.randn(20, 4, generator=stream(0, "z"))
    z[:, 1] = 5.0
    network.calibrate(torch.rand(20, 1, 28, 28), z)
    assert network.stem(z).abs().max() < 1e2


def test_the_class_token_reaches_every_place():
    network = Decoder("conv", feature_shape=(17, 6), image_shape=(3, 32, 32))
    z = torch.zeros(1, 17, 6)
    z[0, 0] = torch.arange(6.0)
    grid = network.stem(z)
    assert grid.shape == (1, 12, 4, 4)
    torch.testing.assert_close(grid[0, 6:], torch.arange(6.0)[:, None, None].expand(6, 4, 4))


def test_tokens_are_laid_out_in_rows():
    z = torch.arange(16.0)[None, :, None].expand(1, 16, 2)
    grid = Decoder("conv", feature_shape=(16, 2), image_shape=(3, 32, 32)).stem(z)
    torch.testing.assert_close(grid[0, 0], torch.arange(16.0).reshape(4, 4))


@pytest.mark.parametrize("rung", RUNGS)
def test_a_label_changes_the_picture_once_it_is_learned(rung):
    network = Decoder(rung, feature_shape=(4, 8, 8), image_shape=(3, 32, 32), n_classes=3)
    z, y = torch.rand(1, 4, 8, 8, generator=stream(0, "z")).expand(4, -1, -1, -1), torch.tensor([-1, 0, 1, 2])
    pictures = network.eval()(z, y)
    torch.testing.assert_close(pictures, pictures[:1].expand_as(pictures))
    wanted = torch.rand(4, 3, 32, 32, generator=stream(0, "wanted"))
    (pictures - wanted).square().mean().backward()
    assert (network.told.places.weight.grad.abs().sum(1) > 0).all()
    torch.nn.init.normal_(network.told.places.weight)
    pictures = network(z, y)  # −1: not known
    assert min((pictures[i] - pictures[j]).abs().max().item() for i in range(4) for j in range(i)) > 1e-6


@pytest.mark.parametrize("rung", RUNGS)
def test_logits_change_the_picture_once_they_are_learned(rung):
    network = Decoder(rung, feature_shape=(4, 8, 8), image_shape=(3, 32, 32), n_logits=3).eval()
    z, logits = torch.rand(1, 4, 8, 8, generator=stream(0, "z")).expand(3, -1, -1, -1), 5 * torch.eye(3)
    pictures = network(z, logits)
    torch.testing.assert_close(pictures, pictures[:1].expand_as(pictures))
    (pictures - torch.rand(3, 3, 32, 32, generator=stream(0, "wanted"))).square().mean().backward()
    last = network.told[-1]
    assert last.weight.grad.abs().max() > 0
    torch.nn.init.normal_(last.weight)
    pictures = network(z, logits)
    assert min((pictures[i] - pictures[j]).abs().max().item() for i in range(3) for j in range(i)) > 1e-6


def test_labels_are_given_exactly_when_they_were_planned():
    z = torch.zeros(1, 4, 8, 8)
    with pytest.raises(UsageError, match="needs labels or logits"):
        Decoder("conv", feature_shape=(4, 8, 8), image_shape=(3, 32, 32), n_classes=3)(z)
    with pytest.raises(UsageError, match="takes no labels or logits"):
        Decoder("conv", feature_shape=(4, 8, 8), image_shape=(3, 32, 32))(z, torch.tensor([0]))
    with pytest.raises(UsageError, match="labels or logits, not both"):
        Decoder("conv", feature_shape=(4, 8, 8), image_shape=(3, 32, 32), n_classes=3, n_logits=3)


def test_wrong_features_are_refused():
    with pytest.raises(UsageError, match="built for features"):
        Decoder("conv", feature_shape=(4, 8, 8), image_shape=(3, 32, 32))(torch.zeros(1, 5, 8, 8))
    with pytest.raises(UsageError, match="flatten them"):
        Decoder("conv", feature_shape=(1, 2, 3, 4), image_shape=(3, 32, 32))


@pytest.mark.parametrize("rung", RUNGS)
def test_a_victim_s_picture_does_not_depend_on_its_neighbors(rung):
    network = Decoder(rung, feature_shape=(4, 8, 8), image_shape=(3, 32, 32))
    z = torch.randn(6, 4, 8, 8, generator=stream(0, "z"))
    network(z)  # moves the batch statistics once
    network.eval()
    torch.testing.assert_close(network(z)[:1], network(z[:1]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("image_shape", [(3, 32, 32), (3, 24, 32), (1, 28, 28), (3, 30, 34)])
def test_a_unet_that_is_compiled_paints_the_same_picture(image_shape, monkeypatch):
    decoder = Decoder("unet", feature_shape=(8, 8, 8), image_shape=image_shape).double().train()
    for parameter in decoder.parameters():  # some begin at zero, and hide what is before them
        torch.nn.init.normal_(parameter, std=0.1)
    z = torch.rand(4, 8, 8, 8, generator=stream(0, "seen"), dtype=torch.float64).requires_grad_()
    pictures = []
    for is_compiling in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: is_compiling)  # noqa: B023
        pictures.append(decoder(z))
    torch.testing.assert_close(pictures[1], pictures[0])
    slopes = [torch.autograd.grad(x.square().sum(), z)[0] for x in pictures]
    torch.testing.assert_close(slopes[1], slopes[0])
