"""Image packs: one .npz a file, exact pixels, a SHA-256 of the decoded content inside.

    med-xz-1      each plane predicted from left a, above b, above-left c:  p = median(a, b, a + b − c)   (LOCO-I)
                  residuals folded to uint8, stored by plane in one xz stream;  RGB is kept as (G, R−G, B−G) mod 256
    jpeg-xz-1     the original JPEG files, one after another, in one xz stream, with their lengths
    columns-xz-1  plain pixels, columns before rows, in one xz stream: smallest for garments on black

Keys: codec, xz, sha256, and shape (N, H, W[, 3]) or length; then label and any further field, one entry an image
(except `classes`: one name a class).
"""

import hashlib
import io
import lzma
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from splitveil.data.archive import Array, Arrays, bad_file, expand, load_arrays
from splitveil.data.part import Part, channels_last_part

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int16]

XZ_FILTERS = [  # literal context of 4 bits and the cheapest match finder: pixels hardly ever repeat
    {"id": lzma.FILTER_LZMA2, "preset": 6, "mf": lzma.MF_HC3, "nice_len": 273, "depth": 1, "lc": 4, "lp": 0, "pb": 0}
]


@dataclass(frozen=True)
class Pack:
    """Decoded images (N, H, W, C) with one label each, and whatever else the file tells."""

    images: Bytes
    fields: Arrays

    @property
    def part(self) -> Part:
        """The images with their labels."""
        return channels_last_part(self.images, self.fields["label"])

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, () where the file has none."""
        return tuple(str(name) for name in self.fields.get("classes", ()))


def is_pack(arrays: Arrays) -> bool:
    """Whether an archive's keys are those of a pack."""
    return "codec" in arrays


def load_pack(path: Path) -> Pack:
    """Decode a pack and check it against the SHA-256 it carries."""
    return decode_pack(path, load_arrays(path))


def decode_pack(path: Path, arrays: Arrays) -> Pack:
    """Decode the arrays read from `path`."""
    missing = [name for name in ("codec", "xz", "sha256", "label") if name not in arrays]
    if missing:
        raise bad_file(path, f"is not an image pack: no {', '.join(missing)}")
    codec = str(arrays["codec"])
    if codec not in DECODERS:
        raise bad_file(path, f"has unknown codec {codec!r}", hint=f"known: {', '.join(DECODERS)}")
    images, stored = DECODERS[codec](path, arrays)
    if hashlib.sha256(stored).hexdigest() != str(arrays["sha256"]):
        raise bad_file(path, "its content does not match the SHA-256 inside it")
    label = arrays["label"]
    if label.shape != (len(images),) or not np.issubdtype(label.dtype, np.integer):
        raise bad_file(path, f"has {len(images)} images but labels {label.dtype} of shape {label.shape}")
    fields = {name: value for name, value in arrays.items() if name not in {"codec", "shape", "xz", "sha256", "length"}}
    return Pack(images, fields)


def save_columns(path: Path, images: Bytes, label: NDArray[np.integer], **fields: Array) -> None:
    """Write gray images (N, H, W) as a `columns-xz-1` pack, with further fields of one entry an image."""
    stream = lzma.compress(images.transpose(0, 2, 1).tobytes(), check=lzma.CHECK_CRC32, filters=XZ_FILTERS)
    arrays: Arrays = {
        "codec": np.array("columns-xz-1"),
        "shape": np.array(images.shape, np.int64),
        "xz": np.frombuffer(stream, np.uint8),
        "sha256": np.array(hashlib.sha256(images.tobytes()).hexdigest()),
        "label": label,
        **fields,
    }
    np.savez(path, **arrays)  # type: ignore[arg-type]  # a name could be `allow_pickle`, for all mypy knows


def _stored(path: Path, arrays: Arrays) -> tuple[Bytes, tuple[int, ...]]:
    """The bytes of the xz stream, by plane where there are three, and the shape they will have."""
    shape = tuple(int(n) for n in arrays.get("shape", ()))
    if len(shape) not in (3, 4) or min(shape) < 1 or (len(shape) == 4 and shape[3] != 3):
        raise bad_file(path, f"has shape {shape}, wanted (N, H, W) or (N, H, W, 3)")
    stored = np.frombuffer(expand(path, arrays["xz"].tobytes()), np.uint8)
    if stored.size != math.prod(shape):
        raise bad_file(path, f"holds {stored.size} pixels where its shape {shape} needs {math.prod(shape)}")
    return stored, shape


def _decode_columns(path: Path, arrays: Arrays) -> tuple[Bytes, memoryview]:
    stored, shape = _stored(path, arrays)
    if len(shape) != 3:
        raise bad_file(path, f"has shape {shape}, but codec columns-xz-1 holds gray images")
    n, height, width = shape
    images = np.ascontiguousarray(stored.reshape(n, width, height).transpose(0, 2, 1))
    return images[..., None], images.data


def _decode_med(path: Path, arrays: Arrays) -> tuple[Bytes, memoryview]:
    stored, shape = _stored(path, arrays)
    planes = stored.reshape(-1, *shape[:3])
    green = _unpredict(planes[0], wrap=lambda v: v & 255)
    if len(shape) == 3:
        images = green[..., None]
    else:
        red, blue = (_unpredict(plane, wrap=_signed) for plane in planes[1:])
        images = np.stack([(red + green) & 255, green, (blue + green) & 255], axis=-1)
    exact = np.ascontiguousarray(images, np.uint8)
    return exact, exact.data


def _signed(values: Ints) -> Ints:
    return ((values + 128) & 255) - 128


def _unpredict(folded: Bytes, *, wrap: Callable[[Ints], Ints]) -> Ints:
    """Undo the prediction of one plane (N, H, W): pixel by pixel, all images at once."""
    columns = np.ascontiguousarray(folded.transpose(1, 2, 0)).astype(np.int16)
    plane: Ints = np.where(columns & 1, -((columns + 1) >> 1), columns >> 1)  # residuals, overwritten by pixels
    height, width, _ = plane.shape
    for j in range(width):
        plane[0, j] = wrap(plane[0, j] + plane[0, j - 1]) if j else wrap(plane[0, 0])
    for i in range(1, height):
        plane[i, 0] = wrap(plane[i, 0] + plane[i - 1, 0])
        for j in range(1, width):
            left, above, corner = plane[i, j - 1], plane[i - 1, j], plane[i - 1, j - 1]
            low, high = np.minimum(left, above), np.maximum(left, above)
            guess = np.minimum(np.maximum(left + above - corner, low), high)
            plane[i, j] = wrap(plane[i, j] + guess)
    return plane.transpose(2, 0, 1)


def _decode_jpeg(path: Path, arrays: Arrays) -> tuple[Bytes, bytes]:
    from PIL import Image, UnidentifiedImageError

    content = expand(path, arrays["xz"].tobytes())
    if "length" not in arrays or int(arrays["length"].sum()) != len(content):
        raise bad_file(path, "the lengths of its JPEG files do not add up to its content")
    ends = np.cumsum(arrays["length"].astype(np.int64))
    images = []
    for number, (begin, end) in enumerate(zip(ends - arrays["length"], ends, strict=True)):
        try:
            images.append(np.asarray(Image.open(io.BytesIO(content[begin:end])).convert("RGB")))
        except (UnidentifiedImageError, OSError) as error:
            raise bad_file(path, f"image {number} is not a readable JPEG") from error
    if len({image.shape for image in images}) != 1:
        raise bad_file(path, "holds images of different sizes")
    return np.stack(images), content


DECODERS: dict[str, Callable[[Path, Arrays], tuple[Bytes, memoryview | bytes]]] = {
    "med-xz-1": _decode_med,
    "jpeg-xz-1": _decode_jpeg,
    "columns-xz-1": _decode_columns,
}
