"""Folders of image files: one's own, FaceScrub, LFW.

    root/class/*                     roles are dealt out by seed
    root/{train,auxiliary,selection,victims}/class/*      roles as the folders say

Classes are numbered in the order of their names. Files that are no images are passed over; images that cannot be
read are named, and left out only when that was asked for.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from splitveil.data.archive import bad_file
from splitveil.data.imageset import ImageSet, Role
from splitveil.data.listing import Decoding, Listing, build_pool
from splitveil.data.part import Part
from splitveil.data.picture import is_picture
from splitveil.data.pool import Pool, assemble


def find_classes(root: Path) -> dict[str, list[str]]:
    """For every class folder the names of its images, relative to `root`, both sorted."""
    folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    found = {path.name: sorted(_relative(root, path.iterdir())) for path in folders}
    empty = [name for name, files in found.items() if not files]
    if empty and any(found.values()):
        raise bad_file(root / empty[0], "has no images in it", hint="remove the folder or add some")
    return {name: files for name, files in found.items() if files}


def _relative(root: Path, paths: Iterable[Path]) -> list[str]:
    return [str(path.relative_to(root)) for path in paths if is_picture(path)]


def has_roles(root: Path) -> bool:
    """Whether the folders in `root` are the four roles."""
    return all((root / role).is_dir() for role in Role)


def from_folder(root: Path, how: Decoding) -> Pool:
    """The images under root/class/*, without roles yet."""
    found = find_classes(root)
    if not found:
        raise bad_file(root, "holds no image set", hint="wanted root/class/*.jpg or a known data set")
    names = [name for files in found.values() for name in files]
    labels = np.repeat(np.arange(len(found)), [len(files) for files in found.values()])
    return build_pool(Listing(root, tuple(names), labels, tuple(found)), how)


def from_role_folders(root: Path, how: Decoding, *, people: bool) -> ImageSet:
    """The set whose roles and classes are folders. Classes are those of train; auxiliary ones may be others."""
    pools = {role: from_folder(root / role, how) for role in Role}
    classes = pools[Role.TRAIN].classes
    parts = {role: _renumbered(root / role, pool, classes, role) for role, pool in pools.items()}
    notes = tuple(f"{role}: {note}" for role, pool in pools.items() for note in pool.notes)
    return assemble(replace(pools[Role.TRAIN], name=root.name, notes=notes, people=people), parts)


def _renumbered(root: Path, pool: Pool, classes: tuple[str, ...], role: Role) -> Part:
    strange = sorted(set(pool.classes) - set(classes))
    if strange and role is not Role.AUXILIARY:
        raise bad_file(root / strange[0], "is a class that train does not have", hint="add it there or remove it")
    if strange:
        return pool.part.unlabeled()
    numbers = torch.tensor([classes.index(name) for name in pool.classes])
    return pool.part.relabeled(numbers[pool.part.labels])
