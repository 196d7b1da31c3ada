"""Client and server: what is sent, in which precision, compiled and in any memory layout."""

import copy

import pytest
import torch
from torch import nn

from splitveil.mechanisms import Gaussian
from splitveil.randomness import SeededSource
from splitveil.split import Bottleneck, cut
from worlds.networks import IMAGES, ResNet, Tokens, Written, nested, seeded, through


def test_an_in_place_layer_in_the_head_does_not_rewrite_what_was_sent() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 10))
    split = cut(model, after="0")
    sent = split.client(IMAGES, source=SeededSource(0))
    kept = sent.clone()
    split.server(sent)
    assert (kept < 0).any()
    assert torch.equal(sent, kept)


def test_the_client_sends_what_its_mechanism_makes_of_its_features() -> None:
    split = cut(seeded(nested), after="0", mechanism=Gaussian(std=0.5)).eval()
    sent = split.client(IMAGES, source=SeededSource(3))
    assert torch.equal(sent, Gaussian(std=0.5)(split.client.encode(IMAGES), source=SeededSource(3)))
    assert torch.equal(split(IMAGES, source=SeededSource(3)), split.server(sent))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_features_are_float32_under_autocast(dtype: torch.dtype) -> None:
    split = cut(seeded(nested), after="0.0.0")
    with torch.autocast("cpu", dtype=dtype):
        assert split.client.encoder(IMAGES).dtype == dtype
        assert split.client.encode(IMAGES).dtype == torch.float32


def test_float64_features_keep_their_digits() -> None:
    split = cut(seeded(nested).double(), after="0")
    assert split.client.encode(IMAGES.double()).dtype == torch.float64


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's own compiler asks for it
@pytest.mark.parametrize(("build", "after"), [(Written, "features.1"), (Tokens, "blocks.1")])
def test_the_halves_compile_and_train(build, after: str) -> None:
    split = cut(seeded(build), after=after, bottleneck=Bottleneck(3), example=IMAGES).eval()
    plain = copy.deepcopy(split)
    split.client.encoder.compile(backend="aot_eager")
    split.server.head.compile(backend="aot_eager")
    source = SeededSource(0)
    torch.testing.assert_close(split(IMAGES, source=source), plain(IMAGES, source=source))
    for each in (split, plain):
        each(IMAGES, source=source).square().sum().backward()
    for ours, theirs in zip(split.encoder_parameters, plain.encoder_parameters, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_channels_last_gives_the_same_answer() -> None:
    split = cut(seeded(ResNet), after="stages.0", bottleneck=Bottleneck(3), example=IMAGES).eval()
    expected = through(split, IMAGES)
    split.client.to(memory_format=torch.channels_last)
    split.server.to(memory_format=torch.channels_last)
    torch.testing.assert_close(through(split, IMAGES.to(memory_format=torch.channels_last)), expected)
