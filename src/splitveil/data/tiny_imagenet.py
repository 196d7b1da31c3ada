"""TinyImageNet-200 from its official folder (64×64 color, 200 classes).

wnids.txt                                  one class a line; its number is the line's
train/<wnid>/images/<wnid>_<k>.JPEG        500 a class; the last 20 are selection
val/images/*, val/val_annotations.txt      50 a class, with labels: auxiliary and victims; test/ has none and is left
"""

import re
from pathlib import Path

import numpy as np

from splitveil.data.archive import bad_file, existing
from splitveil.data.imageset import ImageSet
from splitveil.data.listing import Decoding, Listing, build_pool
from splitveil.data.picture import is_picture
from splitveil.data.pool import official

SIZE = 64
N_SELECTION = 20  # of each class
HINT = "unpack tiny-imagenet-200.zip from http://cs231n.stanford.edu again"


def is_tiny_imagenet(root: Path) -> bool:
    """Whether `root` looks like the official folder."""
    return (root / "wnids.txt").is_file()


def tiny_imagenet(root: Path, how: Decoding) -> ImageSet:
    """TinyImageNet-200 in its fixed roles."""
    wnids = existing(root / "wnids.txt", hint=HINT).read_text().split()
    if not wnids or len(set(wnids)) != len(wnids):
        raise bad_file(root / "wnids.txt", "does not list different classes, one a line", hint=HINT)
    number = {wnid: label for label, wnid in enumerate(wnids)}
    how = Decoding(how.size or SIZE, how.channels or 3, how.skip_broken, how.memory, how.workers)
    halves = (_train(root, number), _validation(root, number))
    train, test = (build_pool(half, how) for half in halves)
    return official(train, test, n_selection=N_SELECTION)


def _train(root: Path, number: dict[str, int]) -> Listing:
    names: list[str] = []
    labels: list[int] = []
    for wnid, label in number.items():
        folder = root / "train" / wnid / "images"
        if not folder.is_dir():
            raise bad_file(folder, "no such folder", hint=HINT)
        mine = sorted((path for path in folder.iterdir() if is_picture(path)), key=lambda path: _places(path.name))
        if not mine:
            raise bad_file(folder, "has no images in it", hint=HINT)
        names += [str(path.relative_to(root)) for path in mine]
        labels += [label] * len(mine)
    return Listing(root, tuple(names), np.array(labels, np.int64), tuple(number))


def _validation(root: Path, number: dict[str, int]) -> Listing:
    table = existing(root / "val" / "val_annotations.txt", hint=HINT)
    names: list[str] = []
    labels: list[int] = []
    for row, line in enumerate(table.read_text().splitlines(), 1):
        name, _, rest = line.partition("\t")
        wnid = rest.split("\t")[0]
        if wnid not in number:
            raise bad_file(table, f"line {row} names no class of wnids.txt", hint=HINT)
        names.append(f"val/images/{name}")
        labels.append(number[wnid])
    order = sorted(range(len(names)), key=lambda place: _places(names[place]))
    listing = Listing(root, tuple(names), np.array(labels, np.int64), tuple(number))
    return listing.take(order)


def _places(name: str) -> tuple[int, ...]:
    """The numbers in a name: image 10 comes after image 9."""
    return tuple(int(digits) for digits in re.findall(r"\d+", name))
