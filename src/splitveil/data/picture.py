"""One image file to pixels: any size, gray or color, turned as its EXIF orientation says.

with a size:   scaled to cover size × size (Lanczos), then its center is cut out
channels 1:    gray (ITU-R 601 luma)            channels 3:    color, transparency dropped; gray is repeated
"""

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from splitveil.data.archive import bad_file

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
GRAY_MODES = frozenset({"1", "L", "LA", "La", "I", "F", "I;16", "I;16B", "I;16L"})
ORIENTATION = 0x0112  # the EXIF tag; 5 … 8 swap width and height
UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, Image.DecompressionBombError)


@dataclass(frozen=True)
class Header:
    """What a file says about its image before it is decoded."""

    height: int
    width: int
    is_gray: bool


def is_picture(path: Path) -> bool:
    """Whether the name is that of an image file; hidden files are none."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def look(path: Path) -> Header:
    """Size and kind of an image without decoding it."""
    try:
        with Image.open(path) as image:
            width, height = image.size
            if width != height and image.getexif().get(ORIENTATION, 1) >= 5:  # reading it may decode a PNG
                width, height = height, width
            return Header(height, width, image.mode in GRAY_MODES)
    except UNREADABLE as error:
        raise bad_file(path, f"is not a readable image ({_reason(error)})") from error


def decode(path: Path, *, size: int | None, channels: int) -> NDArray[np.uint8]:
    """The pixels (H, W, channels) of an image file."""
    try:
        with Image.open(path) as opened:
            image = _in_mode(ImageOps.exif_transpose(opened), "L" if channels == 1 else "RGB")
            if size is not None:
                image = ImageOps.fit(image, (size, size), method=Image.Resampling.LANCZOS)
            return np.array(image, np.uint8).reshape(image.height, image.width, channels)
    except UNREADABLE as error:
        raise bad_file(path, f"is not a readable image ({_reason(error)})") from error


def _in_mode(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I;16"):  # Pillow would clip 16 bits at 255
        image = Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    return image.convert(mode)


def _reason(error: BaseException) -> str:
    text = (str(error).splitlines() or [""])[0]
    return "unknown format" if "cannot identify" in text else text or type(error).__name__
