"""Make the embedded subset of Fashion-MNIST out of the official files.

    apt-get download dataset-fashion-mnist && dpkg-deb -x dataset-fashion-mnist_*.deb fashion-mnist
    python tools/make_fashion.py fashion-mnist/usr/share/datasets/fashion-mnist src/splitveil/data/embedded/fashion.npz

The same official files give the same content: its SHA-256 is in the pack, that of the set in
tests/data/test_fashion_mnist.py.
"""

import argparse
import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from splitveil.data.imageset import Role
from splitveil.data.pack import save_columns

CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
PER_CLASS = {Role.TRAIN: 1200, Role.AUXILIARY: 500, Role.SELECTION: 200, Role.VICTIMS: 250}


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in an IDX file: four bytes of magic (the last: number of axes), big-endian lengths, bytes."""
    content = gzip.decompress(path.read_bytes())
    n_axes = content[3]
    shape = np.frombuffer(content, ">i4", n_axes, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * n_axes).reshape(shape)


def places(labels: NDArray[np.uint8], begin: int, end: int | None) -> NDArray[np.int64]:
    """Images number `begin` … `end` of every class, class after class: alike beside alike compresses better."""
    return np.concatenate([np.flatnonzero(labels == label)[begin:end] for label in range(len(CLASSES))])


def choose(train_labels: NDArray[np.uint8], test_labels: NDArray[np.uint8]) -> dict[Role, NDArray[np.int64]]:
    """The official places of every role's images."""
    n_auxiliary = PER_CLASS[Role.AUXILIARY]
    return {
        Role.TRAIN: places(train_labels, 0, PER_CLASS[Role.TRAIN]),
        Role.AUXILIARY: places(test_labels, 0, n_auxiliary),
        Role.SELECTION: places(train_labels, -PER_CLASS[Role.SELECTION], None),
        Role.VICTIMS: places(test_labels, n_auxiliary, n_auxiliary + PER_CLASS[Role.VICTIMS]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("official", type=Path, help="folder of the four official .gz files")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    halves = {
        half: [read_idx(options.official / f"{half}-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1")]
        for half in ("train", "t10k")
    }
    chosen = choose(halves["train"][1], halves["t10k"][1])
    source = {role: halves["train" if role in (Role.TRAIN, Role.SELECTION) else "t10k"] for role in Role}
    images = np.concatenate([source[role][0][chosen[role]] for role in Role])
    if len({image.tobytes() for image in images}) != len(images):
        raise SystemExit("the official files hold exact copies among the chosen images")
    save_columns(
        options.out,
        images,
        np.concatenate([source[role][1][chosen[role]] for role in Role]),
        index=np.concatenate([chosen[role] for role in Role]).astype(np.int32),
        role=np.repeat(np.arange(len(Role), dtype=np.uint8), [len(chosen[role]) for role in Role]),
        classes=np.array(CLASSES),
    )


if __name__ == "__main__":
    main()
