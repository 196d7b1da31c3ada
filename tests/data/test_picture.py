"""One image file: size, color, orientation, and what makes it unreadable."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from references.official import save_noise
from splitveil.check import UsageError
from splitveil.data.picture import ORIENTATION, Header, decode, is_picture, look

RNG = np.random.default_rng(0)


def test_pixels_of_a_lossless_file_are_exact(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    assert np.array_equal(decode(tmp_path / "x.png", size=None, channels=3), pixels)
    assert look(tmp_path / "x.png") == Header(height=5, width=7, is_gray=False)


def test_gray_becomes_color_by_repetition(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (4, 4), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    assert look(tmp_path / "x.png").is_gray
    assert np.array_equal(decode(tmp_path / "x.png", size=None, channels=3), np.repeat(pixels[..., None], 3, -1))
    assert np.array_equal(decode(tmp_path / "x.png", size=None, channels=1)[..., 0], pixels)


def test_color_becomes_gray_by_luma(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    luma = pixels @ np.array([0.299, 0.587, 0.114])
    assert np.abs(decode(tmp_path / "x.png", size=None, channels=1)[..., 0] - luma).max() <= 1


def test_sixteen_bits_keep_their_upper_eight(tmp_path: Path) -> None:
    levels = np.array([[0, 255, 256, 65535]], np.uint16)
    Image.fromarray(levels).save(tmp_path / "x.png")
    assert decode(tmp_path / "x.png", size=None, channels=1)[0, :, 0].tolist() == [0, 0, 1, 255]


@pytest.mark.parametrize("mode", ["P", "RGBA", "LA", "CMYK", "1"])
def test_other_kinds_of_image_are_read(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("x.tif" if mode == "CMYK" else "x.png")
    Image.new("RGB", (3, 2), (255, 255, 255)).convert(mode).save(path)
    assert np.array_equal(decode(path, size=None, channels=3), np.full((2, 3, 3), 255))


# Where the corner pixel of the stored image is shown, by the EXIF standard's eight orientations.
SHOWN = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: a.swapaxes(0, 1)[:, ::-1],
    7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],
    8: lambda a: a.swapaxes(0, 1)[::-1],
}


@pytest.mark.parametrize("orientation", SHOWN)
def test_orientation_is_followed(tmp_path: Path, orientation: int) -> None:
    pixels = RNG.integers(0, 256, (2, 3, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    Image.fromarray(pixels).save(tmp_path / "x.png", exif=exif)
    shown = SHOWN[orientation](pixels)
    assert np.array_equal(decode(tmp_path / "x.png", size=None, channels=3), shown)
    assert (look(tmp_path / "x.png").height, look(tmp_path / "x.png").width) == shown.shape[:2]


def test_resizing_covers_the_square_and_keeps_the_center(tmp_path: Path) -> None:
    pixels = np.zeros((10, 30), np.uint8)
    pixels[:, 10:20] = 200
    Image.fromarray(pixels).save(tmp_path / "x.png")
    assert np.array_equal(decode(tmp_path / "x.png", size=10, channels=1)[..., 0], np.full((10, 10), 200))
    small = decode(tmp_path / "x.png", size=5, channels=1)
    assert small.shape == (5, 5, 1)
    assert np.abs(small[:, 1:4].astype(int) - 200).max() <= 5  # Lanczos rings at the edges of the bar


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _text(path: Path) -> None:
    path.write_text("I am not an image")


def _half(path: Path) -> None:
    save_noise(path, RNG)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("suffix", ["jpg", "png"])
@pytest.mark.parametrize("damage", [_empty, _text, _half, _folder, lambda path: None])
def test_unreadable_files_are_named_in_one_line(tmp_path: Path, damage: object, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    damage(path)
    with pytest.raises(UsageError) as caught:
        decode(path, size=None, channels=3)
    assert str(caught.value).startswith(f"{path}: is not a readable image (")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "expected"), [("a.jpg", True), ("A.JPEG", True), (".a.jpg", False), ("a.txt", False), ("jpg", False)]
)
def test_pictures_are_known_by_their_names(name: str, expected: bool) -> None:
    assert is_picture(Path(name)) is expected
