"""Any source of images to an image set.

    "fashion"               embedded                       folder of cifar10-*.npz     CIFAR-10 in its fixed roles
    pack.npz                one pack, dealt out by seed    other.npz                   one's own arrays

A role may come from another source: its images of that role if it has roles, else all of them. Face packs take their
auxiliary images from `lfw64-aux.npz` beside them: people who are not among the classes.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from splitveil.check import UsageError, nearest, one_of
from splitveil.data.archive import Arrays, bad_file, load_arrays
from splitveil.data.arrays import from_arrays
from splitveil.data.cifar import cifar10_packs, has_packs
from splitveil.data.fashion_mnist import fashion
from splitveil.data.imageset import UNLABELED, ImageSet, Part, Role
from splitveil.data.pack import decode_pack, is_pack
from splitveil.data.pool import Pool, deal, refuse_shared

EMBEDDED_NAMES = ("fashion",)
FACE_FAMILIES = ("facescrub12", "lfw64")  # how the names of face packs begin
OTHER_PEOPLE = "lfw64-aux.npz"

ROLE_NAMES = tuple(role.value for role in Role)

Source = str | Path


def read(source: Source, *, seed: int = 0, roles: Mapping[str, Source] | None = None) -> ImageSet:
    """The image set at `source`, with single `roles` taken from elsewhere if wanted.

    Guarantees: the same files and seed give the same set; no image has two roles; of faces the auxiliary, selection
    and victim images show different people. A file that cannot be used gives one UsageError that names it.
    """
    found = _open(source)
    wanted = {Role(one_of("role", name, ROLE_NAMES)): other for name, other in (roles or {}).items()}
    if isinstance(found, Pool) and found.people and Role.AUXILIARY not in wanted:
        wanted[Role.AUXILIARY] = _other_people(Path(source))
    given = {role: _given(role, found, _open(other)) for role, other in wanted.items()}
    notes = tuple(f"{role} from {Path(other).stem}" for role, other in wanted.items())
    if isinstance(found, Pool):
        return deal(replace(found, notes=(*found.notes, *notes)), seed=seed, given=given)
    return refuse_shared(found.with_parts(given, notes=notes)) if given else found


def _open(source: Source) -> Pool | ImageSet:
    if source in EMBEDDED_NAMES:
        return fashion()
    path = Path(source)
    if path.is_dir():
        if has_packs(path):
            return cifar10_packs(path)
        raise bad_file(path, "holds no image set", hint="wanted a folder of cifar10-*.npz")
    if path.suffix != ".npz":
        known = f"no such set or file{nearest(str(source), EMBEDDED_NAMES)}"
        raise UsageError(f"data source {str(source)!r}: {known}; give {', '.join(EMBEDDED_NAMES)}, a folder or an .npz")
    arrays = load_arrays(path)
    return _from_pack(path, arrays) if is_pack(arrays) else from_arrays(path, arrays)


def _from_pack(path: Path, arrays: Arrays) -> Pool:
    pack = decode_pack(path, arrays)
    family = next((family for family in FACE_FAMILIES if path.stem.startswith(family)), "")
    return Pool(path.stem, pack.images, pack.labels, pack.classes, people=bool(family), family=family)


def _other_people(path: Path) -> Path:
    beside = path.parent / OTHER_PEOPLE
    if not beside.exists() or beside == path:
        hint = 'or name one: roles={"auxiliary": …}'
        raise bad_file(path, f"needs auxiliary images of other people: {OTHER_PEOPLE} beside it", hint=hint)
    return beside


def _given(role: Role, found: Pool | ImageSet, other: Pool | ImageSet) -> Part:
    """The part that `other` gives to the set of `found`."""
    part = other.part(role) if isinstance(other, ImageSet) else other.part()
    if role is not Role.AUXILIARY:
        return part
    if isinstance(found, Pool) and found.people and isinstance(other, Pool):
        _refuse_same_people(found, other)
    same_classes = bool(other.classes) and other.classes == found.classes
    return part if same_classes else Part(part.pixels, torch.full_like(part.labels, UNLABELED))


def _refuse_same_people(found: Pool, other: Pool) -> None:
    both = found.identities() & other.identities()
    if both:
        count = f"{len(both)} people of {found.name}, such as {min(both)}"
        raise UsageError(f"auxiliary source {other.name} shows {count}; an attacker's people must be others")
