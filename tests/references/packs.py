"""A slow, obvious writer of image packs: one pixel at a time, as the format's description reads."""

import hashlib
import io
import lzma
from pathlib import Path

import numpy as np
from PIL import Image


def _signed(value: int) -> int:
    return (value + 128) % 256 - 128


def _planes(images: np.ndarray) -> list[np.ndarray]:
    images = images.astype(int)
    if images.ndim == 3:
        return [images]
    red, green, blue = (images[..., k] for k in range(3))
    return [green, np.vectorize(_signed)(red - green), np.vectorize(_signed)(blue - green)]


def _folded_residuals(plane: np.ndarray) -> np.ndarray:
    out = np.zeros(plane.shape, np.uint8)
    for n, i, j in np.ndindex(*plane.shape):
        if i and j:
            left, above = plane[n, i, j - 1], plane[n, i - 1, j]
            guess = sorted([left, above, left + above - plane[n, i - 1, j - 1]])[1]
        elif i:
            guess = plane[n, i - 1, 0]
        else:
            guess = plane[n, 0, j - 1] if j else 0
        residual = _signed(int(plane[n, i, j]) - int(guess))
        out[n, i, j] = 2 * residual if residual >= 0 else -2 * residual - 1
    return out


def med_arrays(images: np.ndarray, label: np.ndarray, **fields: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of a `med-xz-1` pack."""
    content = b"".join(_folded_residuals(plane).tobytes() for plane in _planes(images))
    return {
        "codec": np.array("med-xz-1"),
        "shape": np.array(images.shape, np.int64),
        "xz": np.frombuffer(lzma.compress(content), np.uint8),
        "sha256": np.array(hashlib.sha256(images.tobytes()).hexdigest()),
        "label": label,
        **fields,
    }


def save_med(path: Path, images: np.ndarray, label: np.ndarray, **fields: np.ndarray) -> Path:
    """Write a `med-xz-1` pack."""
    np.savez(path, **med_arrays(images, label, **fields))
    return path


def jpeg_arrays(images: np.ndarray, label: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of a `jpeg-xz-1` pack."""
    files = []
    for image in images:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "JPEG", quality=95)
        files.append(buffer.getvalue())
    content = b"".join(files)
    return {
        "codec": np.array("jpeg-xz-1"),
        "xz": np.frombuffer(lzma.compress(content), np.uint8),
        "length": np.array([len(file) for file in files]),
        "sha256": np.array(hashlib.sha256(content).hexdigest()),
        "label": label,
    }
