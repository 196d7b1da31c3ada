"""Image sets: what a part and a set promise, and what they refuse."""

from dataclasses import replace

import jaxtyping
import pytest
import torch
from torch import Tensor

from splitveil.check import UsageError
from splitveil.data import UNLABELED, ImageSet, Part, Role


def _part(*labels: int, shade: int = 0, shape: tuple[int, int, int] = (1, 2, 2)) -> Part:
    pixels = torch.arange(shade, shade + len(labels), dtype=torch.uint8).reshape(-1, 1, 1, 1).expand(-1, *shape)
    return Part(pixels.contiguous(), torch.tensor(labels))


@pytest.fixture
def tiny() -> ImageSet:
    parts = {str(role): _part(0, 1, 1, shade=10 * place) for place, role in enumerate(Role)}
    return ImageSet("tiny", 2, **parts)


def test_all_gray_levels_survive_the_way_to_float_and_back() -> None:
    pixels = torch.arange(256, dtype=torch.uint8).reshape(256, 1, 1, 1)
    images = Part(pixels, torch.zeros(256, dtype=torch.int64)).images()
    assert images.dtype == torch.float32
    assert images.min() == 0
    assert images.max() == 1
    assert torch.equal((255 * images).round().to(torch.uint8), pixels)


@pytest.mark.parametrize("index", [torch.tensor([2, 0]), slice(1, 3), None])
def test_images_are_those_chosen(index: Tensor | slice | None) -> None:
    part = _part(0, 0, 0, shade=5)
    everything = part.pixels.float() / 255
    assert torch.equal(part.images(index), everything if index is None else everything[index])


def test_reading_images_leaves_the_pixels_alone() -> None:
    part = _part(0, 0, shade=9)
    part.images().zero_()
    assert part.pixels[0, 0, 0, 0] == 9


def test_take_gives_the_first() -> None:
    part = _part(0, 1, 2)
    assert part.take(2).labels.tolist() == [0, 1]
    with pytest.raises(UsageError, match="take needs 1 … 3 images, got 4"):
        part.take(4)


@pytest.mark.parametrize(
    ("pixels", "labels"),
    [
        (torch.zeros(2, 1, 2, 2), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros(2, 2, 2, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.zeros(2)),
        (torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)),
    ],
)
def test_parts_of_wrong_type_or_shape_are_refused(
    monkeypatch: pytest.MonkeyPatch, pixels: Tensor, labels: Tensor
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as outside the tests
    with pytest.raises(UsageError, match=r"must be (uint8|int64)"):
        Part(pixels, labels)


def test_hash_depends_on_pixels_labels_and_roles_but_not_on_names(tiny: ImageSet) -> None:
    same = replace(tiny, name="other", notes=("read twice",))
    assert same.sha256 == tiny.sha256
    pixel, label = tiny.train.pixels.clone(), tiny.train.labels.clone()
    pixel[0, 0, 0, 0] += 1
    label[0] = 1
    swapped = tiny.with_parts({Role.TRAIN: tiny.victims, Role.VICTIMS: tiny.train})
    others = [
        tiny.with_parts({Role.TRAIN: Part(pixel, tiny.train.labels)}),
        tiny.with_parts({Role.TRAIN: Part(tiny.train.pixels, label)}),
        swapped,
    ]
    assert len({other.sha256 for other in [tiny, *others]}) == 4


def test_moving_keeps_everything(tiny: ImageSet) -> None:
    moved = tiny.to("cpu")
    assert moved.sha256 == tiny.sha256
    assert moved.name == "tiny"


def test_description_counts_roles(tiny: ImageSet) -> None:
    wanted = "tiny: 1×2×2, 2 classes; train 3, auxiliary 3, selection 3, victims 3; one file absent"
    assert replace(tiny, notes=("one file absent",)).describe() == wanted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"victims": Part(torch.empty(0, 1, 2, 2, dtype=torch.uint8), torch.empty(0, dtype=torch.int64))}, "is empty"),
        ({"victims": _part(0, shape=(1, 3, 2))}, r"shape \(1, 3, 2\) but train has \(1, 2, 2\)"),
        ({"selection": _part(2)}, "labels of role selection of set 'tiny' must lie in 0 … 1, got 2 … 2"),
        ({"train": _part(UNLABELED)}, "labels of role train"),
        ({"classes": ("one",)}, "names 1 classes but has 2"),
        ({"people": True}, "auxiliary and victims of set 'tiny' show 2 of the same people, such as label 0"),
    ],
)
def test_sets_that_break_a_promise_are_refused(tiny: ImageSet, change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(tiny, **change)


def test_unlabeled_auxiliary_people_are_strangers(tiny: ImageSet) -> None:
    strangers = {Role.AUXILIARY: _part(UNLABELED, UNLABELED), Role.SELECTION: _part(0), Role.VICTIMS: _part(1)}
    assert replace(tiny.with_parts(strangers), people=True).people
