"""A client that cannot be attacked is told of in one line, before anything is played or written."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import splitveil
from splitveil.attacks import Ridge, Threat
from splitveil.check import RunError, UsageError
from splitveil.evaluation import Result, Suite, Trial, take_part
from splitveil.evaluation.rehearsal import different
from splitveil.evaluation.roles import split_roles
from splitveil.mechanisms import Gaussian
from splitveil.split import Client
from worlds.linear_gaussian import world

IMAGES = world(side=12).part(60, 0, "user").images()
RIDGE = Suite("ridge", (Trial(Ridge(), Threat()),))


class Answer(nn.Module):
    """A convolution, and something done to what it gives."""

    def __init__(self, change: Callable[[Tensor], object]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.change = nn.Conv2d(1, 2, 3, 2), change

    def forward(self, x: Tensor) -> object:
        return self.change(self.conv(x))


WRONG = {
    "double weights": (nn.Conv2d(1, 2, 3).double(), r"fails on a batch of 8 images \(1, 12, 12\).*torch.float64: give"),
    "half weights": (nn.Conv2d(1, 2, 3).half(), r"fails on a batch of 8 images.*weights torch.float16: give client.fl"),
    "other channels": (
        nn.Conv2d(3, 2, 3),
        r"fails on a batch of 8 images \(1, 12, 12\): .*to have 3 channels, but got 1",
    ),
    "double answer": (Answer(lambda z: z.double()), "float32 numbers, got torch.float64; end it with .float()"),
    "whole numbers": (Answer(lambda z: z.long()), "float32 numbers, got torch.int64; end it with .float()"),
    "tuple": (Answer(lambda z: (z, z)), "8 images with a tensor of 8 rows, got tuple; let its forward return"),
    "one number each": (Answer(lambda z: z.mean((1, 2, 3))), r"tensor of 8 rows, got shape \(8,\); add .unsqueeze"),
    "one row for all": (Answer(lambda z: z.mean(0, keepdim=True)), r"of 8 rows, got shape \(1, 2, 5, 5\); keep the"),
    "no row at all": (Answer(lambda z: z.mean()), r"8 rows, got shape \(\); keep the batch"),
    "NaN": (Answer(lambda z: z / 0 * 0), "the client sends NaN or infinite numbers for 8 of 8 images"),
    "infinite": (Answer(lambda z: z.square() / 0), "the client sends NaN or infinite numbers for 8 of 8 images"),
    "function with NaN": (lambda x: x * float("nan"), "the client sends NaN or infinite numbers for 8 of 8 images"),
    "function of one row": (lambda x: x.mean(0, keepdim=True), r"tensor of 8 rows, got shape \(1, 1, 12, 12\)"),
    "function that fails": (
        lambda x: x.no_such_thing,
        "fails on a batch of 8 images .*: 'Tensor' object has no attrib",
    ),
}


@pytest.mark.parametrize("noisy", [False, True], ids=["bare", "noisy"])
@pytest.mark.parametrize("name", WRONG)
def test_a_client_that_cannot_be_attacked_is_told_of_in_one_line(tmp_path, name, noisy):
    client, message = WRONG[name]
    if noisy and isinstance(client, nn.Module):  # its bounds must not stumble either
        client = Client(client, Gaussian(std=0.1))
    with pytest.raises(UsageError, match=message) as told:
        splitveil.audit(client, IMAGES, suite=RIDGE, out=tmp_path / "out")
    assert "\n" not in str(told.value)
    assert not (tmp_path / "out").exists()


def test_a_client_in_half_precision_that_takes_images_is_welcome():
    found = splitveil.audit(Answer(lambda z: z.bfloat16()), IMAGES, suite=RIDGE)
    assert found.best.leak.mean > 0.1


def test_a_client_that_fails_on_a_victim_is_named(monkeypatch):
    """It behaves on the images that it is tried on."""
    roles = split_roles(IMAGES)
    strange = roles.victims.images(slice(5, 6)).mean()

    def answer(x):
        return torch.where(x.mean((1, 2, 3), keepdim=True) == strange, float("nan"), x)

    with pytest.raises(RunError, match="the client sends NaN or infinite numbers for a victim of 0 to 14"):
        splitveil.evaluate(answer, RIDGE, roles)


@pytest.mark.parametrize("seeds", [3, [], (1, 1), "01", [0.5], None])
def test_seeds_are_different_whole_numbers(seeds):
    with pytest.raises(UsageError, match=r"seeds must be different numbers, at least one, got .*; give a list, or ra"):
        different(seeds)


def test_a_folder_may_be_a_word(tmp_path):
    place = str(tmp_path / "out")
    found = splitveil.audit(Answer(lambda z: z), IMAGES, suite=RIDGE, out=place)
    assert Result.load(f"{place}/result.json") == found
    assert take_part(Answer(lambda z: z), RIDGE, split_roles(IMAGES), out=place)() == (1, 1)
