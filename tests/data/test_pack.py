"""Packs: decoded exactly, and refused where anything about them is wrong."""

import hashlib
import lzma
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from references.packs import jpeg_arrays, med_arrays, save_med
from splitveil.check import UsageError
from splitveil.data.pack import decode_pack, load_pack, save_columns

shapes = st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 5))
gray = shapes.flatmap(lambda shape: hnp.arrays(np.uint8, shape))
color = shapes.flatmap(lambda shape: hnp.arrays(np.uint8, (*shape, 3)))


@settings(deadline=None, max_examples=60)
@given(images=st.one_of(gray, color))
def test_predicted_pixels_decode_exactly(images: np.ndarray) -> None:
    pack = decode_pack(Path("x.npz"), med_arrays(images, np.zeros(len(images), np.int16)))
    assert np.array_equal(pack.images, images.reshape(*images.shape[:3], -1))


def test_columns_decode_exactly(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    save_columns(tmp_path / "x.npz", images, np.array([3, 1, 0, 2]), index=np.arange(4), classes=np.array(list("abcd")))
    pack = load_pack(tmp_path / "x.npz")
    assert np.array_equal(pack.images[..., 0], images)
    assert pack.part.labels.tolist() == [3, 1, 0, 2]
    assert pack.classes == ("a", "b", "c", "d")
    assert set(pack.fields) == {"label", "index", "classes"}


def test_jpeg_files_decode_to_nearly_what_was_drawn() -> None:
    ramp = np.broadcast_to(np.linspace(0, 255, 16, dtype=np.uint8)[:, None, None], (2, 16, 16, 3))
    pack = decode_pack(Path("x.npz"), jpeg_arrays(np.ascontiguousarray(ramp), np.array([0, 1])))
    assert pack.images.shape == (2, 16, 16, 3)
    assert np.abs(pack.images.astype(int) - ramp).mean() < 3


def _broken(**changes: object) -> dict[str, np.ndarray]:
    images = np.random.default_rng(1).integers(0, 256, (2, 3, 3), dtype=np.uint8)
    arrays = med_arrays(images, np.array([0, 1]))
    arrays.update({name: np.array(value) for name, value in changes.items()})
    return {name: value for name, value in arrays.items() if value.ndim or value.item() is not None}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (_broken(sha256="0" * 64), "its content does not match the SHA-256 inside it"),
        (_broken(codec="zip-9"), "has unknown codec 'zip-9'"),
        (_broken(label=None), "is not an image pack: no label"),
        (_broken(label=[0, 1, 2]), "has 2 images but labels"),
        (_broken(label=[0.0, 1.0]), "has 2 images but labels float64"),
        (_broken(shape=[2, 3, 4]), "holds 18 pixels where its shape (2, 3, 4) needs 24"),
        (_broken(shape=[2, 3]), "has shape (2, 3)"),
        (_broken(shape=[2, 3, 3, 2]), "has shape (2, 3, 3, 2)"),
        (_broken(xz=np.zeros(9, np.uint8)), "its xz stream is truncated or corrupt"),
        (jpeg_arrays(np.zeros((1, 8, 8, 3), np.uint8), np.zeros(1, int)) | {"length": np.array([5])}, "do not add up"),
    ],
)
def test_wrong_packs_are_told_in_one_line(arrays: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        decode_pack(Path("some/x.npz"), arrays)
    assert str(caught.value).startswith("some/x.npz: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_broken_jpeg_is_numbered() -> None:
    content = b"no picture"
    arrays = {
        "codec": np.array("jpeg-xz-1"),
        "xz": np.frombuffer(lzma.compress(content), np.uint8),
        "length": np.array([len(content)]),
        "sha256": np.array(hashlib.sha256(content).hexdigest()),
        "label": np.array([0]),
    }
    with pytest.raises(UsageError, match="image 0 is not a readable JPEG"):
        decode_pack(Path("x.npz"), arrays)


def test_reference_writer_and_reader_agree_on_files(tmp_path: Path) -> None:
    images = np.random.default_rng(2).integers(0, 256, (3, 6, 5, 3), dtype=np.uint8)
    assert np.array_equal(load_pack(save_med(tmp_path / "x.npz", images, np.arange(3))).images, images)
