"""CIFAR-10 and CIFAR-100 from their official python batches (Krizhevsky 2009), read without running a pickle.

    CIFAR-10    cifar-10-batches-py/   data_batch_1 … data_batch_5, test_batch, batches.meta
    CIFAR-100   cifar-100-python/      train, test, meta                                     (fine labels)

    selection   the last 200 (CIFAR-100: 20) of each class of official train;   train   the others
    auxiliary   the first half of each class of official test;                  victims the second half

A file with the official number of images must have the official MD5; smaller ones of the same form are read too, and
the set says so.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from splitveil.data.archive import bad_file, existing
from splitveil.data.imageset import ImageSet
from splitveil.data.part import Part, channels_last_part
from splitveil.data.pool import Pool, official
from splitveil.data.unpickle import read_pickle

ROW = 3 * 32 * 32  # bytes an image: all red, then all green, then all blue


@dataclass(frozen=True)
class Edition:
    """One of the two data sets: its folder, files, keys and sizes."""

    name: str
    folder: str
    train: tuple[str, ...]
    test: str
    meta: str
    label_key: str
    names_key: str
    n_classes: int
    n_selection: int  # of each class
    n_images: dict[str, int]
    md5: dict[str, str]

    @property
    def hint(self) -> str:
        """Where good files come from."""
        return f"unpack {self.name.replace('cifar', 'cifar-')}-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html"


CIFAR10 = Edition(
    name="cifar10",
    folder="cifar-10-batches-py",
    train=tuple(f"data_batch_{k}" for k in range(1, 6)),
    test="test_batch",
    meta="batches.meta",
    label_key="labels",
    names_key="label_names",
    n_classes=10,
    n_selection=200,
    n_images={**{f"data_batch_{k}": 10_000 for k in range(1, 6)}, "test_batch": 10_000},
    md5={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
)
CIFAR100 = Edition(
    name="cifar100",
    folder="cifar-100-python",
    train=("train",),
    test="test",
    meta="meta",
    label_key="fine_labels",
    names_key="fine_label_names",
    n_classes=100,
    n_selection=20,
    n_images={"train": 50_000, "test": 10_000},
    md5={"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
)


def find_batches(folder: Path) -> tuple[Edition, Path] | None:
    """Which edition `folder` holds, itself or in the official subfolder, and where."""
    for edition in (CIFAR10, CIFAR100):
        for place in (folder, folder / edition.folder):
            is_named = place.name == edition.folder and place.is_dir()
            if is_named or all((place / file).is_file() for file in (edition.meta, edition.test)):
                return edition, place
    return None


def cifar_batches(edition: Edition, folder: Path) -> ImageSet:
    """CIFAR-10 or CIFAR-100 in its fixed roles."""
    meta = read_pickle(existing(folder / edition.meta, hint=edition.hint))
    classes = meta.get(edition.names_key)
    if not isinstance(classes, list) or len(classes) != edition.n_classes:
        raise bad_file(folder / edition.meta, f"does not name {edition.n_classes} classes", hint=edition.hint)
    names = tuple(str(name) for name in classes)
    halves = [[_batch(edition, folder / file) for file in files] for files in (edition.train, (edition.test,))]
    train, test = (
        Pool(edition.name, _joined([part for part, _ in half]), names, tuple(note for _, note in half if note))
        for half in halves
    )
    return official(train, test, n_selection=edition.n_selection)


def _joined(parts: list[Part]) -> Part:
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.joined(part)
    return whole


def _batch(edition: Edition, path: Path) -> tuple[Part, str]:
    """The images of one file, and what is unusual about it."""
    content = read_pickle(existing(path, hint=edition.hint))
    images, labels = _images(edition, path, content), _labels(edition, path, content)
    if len(images) != len(labels):
        raise bad_file(path, f"has {len(images)} images but {len(labels)} labels", hint=edition.hint)
    part = channels_last_part(images, labels)
    if len(part) != edition.n_images[path.name]:
        return part, f"{path.name} holds {len(part):,} images, officially {edition.n_images[path.name]:,}"
    if hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() != edition.md5[path.name]:
        raise bad_file(path, f"is not the official file (its MD5 is not {edition.md5[path.name]})", hint=edition.hint)
    return part, ""


def _images(edition: Edition, path: Path, content: dict[str, Any]) -> np.ndarray:
    data = content.get("data")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != ROW:
        got = f"{data.dtype} of shape {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise bad_file(path, f"its data must be uint8 of shape (N, {ROW}), got {got}", hint=edition.hint)
    return data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _labels(edition: Edition, path: Path, content: dict[str, Any]) -> np.ndarray:
    labels = content.get(edition.label_key)
    if not isinstance(labels, list) or not all(type(k) is int and 0 <= k < edition.n_classes for k in labels):
        wanted = f"its {edition.label_key} must be numbers from 0 to {edition.n_classes - 1}"
        raise bad_file(path, wanted, hint=edition.hint)
    return np.array(labels, np.int64)
