"""CIFAR-10 out of its packs, in the roles that every published number here uses.

    of official train:  selection  the last 200 of each class          train    the other 48,000
    of official test:   auxiliary  the first 500 of each class         victims  the second 500

With only some of the packs the same rule deals out what is there, and the set says which packs are absent.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from splitveil.data.archive import bad_file
from splitveil.data.imageset import ImageSet
from splitveil.data.pack import load_pack
from splitveil.data.part import channels_last_part
from splitveil.data.pool import Pool, official

SELECTION_10 = 200  # images of each class
HALVES = {"train": "abcde", "test": "ab"}  # shards of each official half


def has_packs(folder: Path) -> bool:
    """Whether `folder` holds CIFAR-10 packs."""
    return any(folder.glob("cifar10-*.npz"))


def cifar10_packs(folder: Path) -> ImageSet:
    """CIFAR-10 from the packs in `folder`: all seven, or at least one of train and one of test."""
    return official(_half(folder, "train"), _half(folder, "test"), n_selection=SELECTION_10)


def _half(folder: Path, half: str) -> Pool:
    """The images of one official half that are here, in official order."""
    there = {shard: folder / f"cifar10-{half}-{shard}.npz" for shard in HALVES[half]}
    here = {shard: path for shard, path in there.items() if path.exists()}
    if not here:
        raise bad_file(folder, f"has no pack cifar10-{half}-*.npz", hint=f"put {there['a'].name} there")
    with ThreadPoolExecutor(len(here)) as pool:  # xz is unpacked outside Python's lock
        packs = list(pool.map(load_pack, here.values()))
    absent = [f"{half}-{shard}" for shard in there if shard not in here]
    for path, pack in zip(here.values(), packs, strict=True):
        if "index" not in pack.fields or pack.images.shape[1:] != (32, 32, 3):
            raise bad_file(path, "is not a CIFAR-10 pack: wanted 32×32×3 images with their official index")
    order = np.argsort(np.concatenate([pack.fields["index"] for pack in packs]), kind="stable")
    part = channels_last_part(
        np.concatenate([pack.images for pack in packs])[order],
        np.concatenate([pack.fields["label"] for pack in packs])[order],
    )
    notes = (f"packs {', '.join(absent)} absent",) if absent else ()
    return Pool("cifar10", part, packs[0].classes, notes)
