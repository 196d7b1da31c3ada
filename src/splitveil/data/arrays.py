"""One's own images in an .npz file.

    images, labels                                       roles are dealt out by seed; or
    train_images, train_labels, auxiliary_images, …      all four roles as the file says;     classes (optional) names

Images are uint8 of shape (N, H, W), (N, H, W, C) or (N, C, H, W) with C 1 or 3; labels are integers from 0.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from splitveil.data.archive import Array, Arrays, bad_file
from splitveil.data.imageset import ImageSet, Role
from splitveil.data.part import channels_last_part
from splitveil.data.pool import Pool, assemble

KEYS = "images and labels, or {train,auxiliary,selection,victims}_{images,labels}"


def from_arrays(path: Path, arrays: Arrays) -> Pool | ImageSet:
    """A pool where the file has one heap of images, a set where it has roles."""
    if "images" in arrays:
        return _pool(path, arrays, "")
    missing = [f"{role}_images" for role in Role if f"{role}_images" not in arrays]
    if missing:
        raise bad_file(path, f"has no {', '.join(missing)} among {', '.join(arrays) or 'no keys'}", hint=f"give {KEYS}")
    pools = {role: _pool(path, arrays, f"{role}_") for role in Role}
    facts = max(pools.values(), key=lambda pool: pool.n_classes)
    return assemble(replace(facts, name=path.stem), {role: pool.part for role, pool in pools.items()})


def _pool(path: Path, arrays: Arrays, prefix: str) -> Pool:
    images, labels = (arrays.get(f"{prefix}{kind}") for kind in ("images", "labels"))
    if images is None or labels is None:
        raise bad_file(path, f"has no {prefix}{'images' if images is None else 'labels'}", hint=f"give {KEYS}")
    if len(images) == 0:
        raise bad_file(path, f"{prefix}images is empty", hint="every role needs images")
    if labels.shape != images.shape[:1] or not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
        wanted = f"{prefix}labels must be {len(images)} integers from 0"
        raise bad_file(path, f"{wanted}, got {labels.dtype} of shape {labels.shape}", hint="one label an image")
    classes = tuple(str(name) for name in arrays.get("classes", ()))
    return Pool(path.stem, channels_last_part(_channels_last(path, images, f"{prefix}images"), labels), classes)


def _channels_last(path: Path, images: Array, name: str) -> NDArray[np.uint8]:
    if images.dtype != np.uint8:
        raise bad_file(path, f"{name} must be uint8 in 0 … 255, got {images.dtype}", hint="save (255·x).round()")
    if images.ndim == 3:
        return images[..., None]
    if images.ndim == 4 and images.shape[3] in (1, 3):
        return images
    if images.ndim == 4 and images.shape[1] in (1, 3):
        return images.transpose(0, 2, 3, 1)
    raise bad_file(path, f"{name} has shape {images.shape}", hint="wanted (N, H, W), (N, H, W, C) or (N, C, H, W)")
