"""One's own .npz: the shapes it may have, and one line for those it may not."""

from pathlib import Path

import numpy as np
import pytest
import torch

from splitveil.check import UsageError
from splitveil.data import ImageSet, Role, read

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (40, 6, 5, 3), dtype=np.uint8)
LABELS = np.arange(40) % 2


def _save(folder: Path, **arrays: object) -> Path:
    np.savez(folder / "mine.npz", **arrays)
    return folder / "mine.npz"


def _roles() -> dict[str, np.ndarray]:
    arrays = {}
    for place, role in enumerate(Role):
        rows = slice(10 * place, 10 * place + 10)
        arrays |= {f"{role}_images": IMAGES[rows], f"{role}_labels": LABELS[rows]}
    return arrays


def test_roles_are_as_the_file_says(tmp_path: Path) -> None:
    data = read(_save(tmp_path, **_roles(), classes=np.array(["cat", "dog"])))
    assert data.name == "mine"
    assert data.classes == ("cat", "dog")
    for place, role in enumerate(Role):
        pixels = torch.from_numpy(IMAGES[10 * place : 10 * place + 10].transpose(0, 3, 1, 2).copy())
        assert torch.equal(data.part(role).pixels, pixels)
        assert data.part(role).labels.tolist() == LABELS[10 * place : 10 * place + 10].tolist()


def test_one_heap_is_dealt_out(tmp_path: Path) -> None:
    data = read(_save(tmp_path, images=IMAGES, labels=LABELS))
    assert [len(data.part(role)) for role in Role] == [24, 8, 2, 6]
    assert data.sha256 != read(tmp_path / "mine.npz", seed=1).sha256


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 3, 1, 2)])
def test_channels_may_come_first_or_last(tmp_path: Path, axes: tuple[int, ...]) -> None:
    data = read(_save(tmp_path, images=IMAGES.transpose(axes), labels=LABELS))
    assert data.image_shape == (3, 6, 5)
    assert data.sha256 == read(_save(tmp_path, images=IMAGES, labels=LABELS)).sha256


def test_gray_needs_no_channel(tmp_path: Path) -> None:
    assert read(_save(tmp_path, images=IMAGES[..., 0], labels=LABELS)).image_shape == (1, 6, 5)


def _without(name: str) -> dict[str, np.ndarray]:
    return {key: value for key, value in _roles().items() if key != name}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": IMAGES / 255, "labels": LABELS}, "images must be uint8 in 0 … 255, got float64"),
        ({"images": IMAGES, "labels": LABELS / 2}, "labels must be 40 integers from 0, got float64"),
        ({"images": IMAGES, "labels": LABELS[:9]}, "labels must be 40 integers from 0, got int64 of shape (9,)"),
        ({"images": IMAGES, "labels": LABELS - 1}, "labels must be 40 integers from 0"),
        ({"images": IMAGES}, "has no labels"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, "images is empty"),
        ({"images": IMAGES[..., :2], "labels": LABELS}, "images has shape (40, 6, 5, 2)"),
        (
            {"pictures": IMAGES},
            "has no train_images, auxiliary_images, selection_images, victims_images among pictures",
        ),
        (_without("victims_images"), "has no victims_images"),
        (_without("selection_labels"), "has no selection_labels"),
        (_roles() | {"victims_images": IMAGES[:10]}, "hold the same image"),
        (_roles() | {"victims_images": IMAGES[30:, :4]}, "has images of shape (3, 4, 5) but train has (3, 6, 5)"),
        (_roles() | {"classes": np.array(["one"])}, "must lie in 0 … 0, got 0 … 1"),
        ({}, "has no train_images"),
    ],
)
def test_wrong_arrays_are_told_in_one_line(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(_save(tmp_path, **arrays))
    assert message in str(caught.value)
    assert "mine" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_reading_gives_a_set(tmp_path: Path) -> None:
    assert isinstance(read(str(_save(tmp_path, **_roles()))), ImageSet)
