"""Any source of images to an image set.

    "fashion"                   embedded in the package
    pack.npz, own.npz           one pack, or one's own arrays                          (arrays.py)
    folder of cifar10-*.npz     CIFAR-10 packs                                         (cifar_packs.py)
    cifar-10-batches-py/        CIFAR-10, official files; cifar-100-python/ likewise   (cifar.py)
    tiny-imagenet-200/          TinyImageNet, official files                           (tiny_imagenet.py)
    root/class/*                image files; also root/{train,auxiliary,…}/class/*     (folder.py)

A role may come from another source: its images of that role if it has roles, else all of them. Face packs take their
auxiliary images from `lfw64-aux.npz` beside them: people who are not among the classes.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from splitveil.check import UsageError, nearest, one_of
from splitveil.data.archive import Arrays, bad_file, load_arrays
from splitveil.data.arrays import from_arrays
from splitveil.data.cifar import cifar_batches, find_batches
from splitveil.data.cifar_packs import cifar10_packs, has_packs
from splitveil.data.fashion_mnist import fashion
from splitveil.data.folder import from_folder, from_role_folders, has_roles
from splitveil.data.imageset import ImageSet, Role
from splitveil.data.listing import Decoding
from splitveil.data.pack import decode_pack, is_pack
from splitveil.data.part import Part
from splitveil.data.pool import Pool, deal, refuse_shared
from splitveil.data.tiny_imagenet import is_tiny_imagenet, tiny_imagenet

EMBEDDED_NAMES = ("fashion",)
FACE_FAMILIES = ("facescrub12", "lfw64")  # how the names of face packs begin
OTHER_PEOPLE = "lfw64-aux.npz"
ROLE_NAMES = tuple(role.value for role in Role)

Source = str | Path


def read(
    source: Source,
    *,
    seed: int = 0,
    roles: Mapping[str, Source] | None = None,
    people: bool = False,
    decoding: Decoding | None = None,
) -> ImageSet:
    """The image set at `source`, with single `roles` taken from elsewhere if wanted.

    `seed` deals out the roles of sources that have none. With `people`, classes are identities. `decoding` says how
    image files are read.

    Guarantees: the same files and seed give the same set; no image has two roles; of people the auxiliary, selection
    and victim images show different ones. A file that cannot be used gives one UsageError that names it.
    """
    how = decoding or Decoding()
    found = _open(source, how, people=people)
    wanted = {Role(one_of("role", name, ROLE_NAMES)): other for name, other in (roles or {}).items()}
    if isinstance(found, Pool) and found.family and Role.AUXILIARY not in wanted:
        wanted[Role.AUXILIARY] = _other_people(Path(source))
    given = {role: _given(role, found, _open(other, how, people=people)) for role, other in wanted.items()}
    notes = tuple(f"{role} from {Path(other).stem}" for role, other in wanted.items())
    if isinstance(found, Pool):
        return deal(replace(found, notes=(*found.notes, *notes)), seed=seed, given=given)
    return refuse_shared(found.with_parts(given, notes=notes)) if given else found


def _open(source: Source, how: Decoding, *, people: bool) -> Pool | ImageSet:
    """A pool where the source has no roles of its own, else the set."""
    path = Path(source)
    found: Pool | ImageSet
    if source in EMBEDDED_NAMES:
        found = fashion()
    elif path.is_dir():
        found = _open_folder(path, how, people=people)
    elif path.suffix == ".npz":
        arrays = load_arrays(path)
        found = _from_pack(path, arrays) if is_pack(arrays) else from_arrays(path, arrays)
    else:
        raise _unknown(str(source), path)
    _refuse_ignored(found, how)
    return replace(found, people=True) if people and not found.people else found


def _refuse_ignored(found: Pool | ImageSet, how: Decoding) -> None:
    """Image files are decoded as asked; arrays are what they are."""
    channels, height, width = (found.part if isinstance(found, Pool) else found.train).image_shape
    if how.size not in (None, height) or how.size not in (None, width) or how.channels not in (None, channels):
        held = f"holds images of {channels}×{height}×{width}, which are not decoded from files"
        raise UsageError(f"{found.name} {held}; leave size and channels out")


def _unknown(source: str, path: Path) -> UsageError:
    if path.is_file():
        return bad_file(path, "is not an .npz file", hint="unpack archives, and give the folder")
    close = nearest(source, EMBEDDED_NAMES)
    return UsageError(
        f"data source {source!r}: no such set or file{close}; give {', '.join(EMBEDDED_NAMES)}, a folder or an .npz"
    )


def _open_folder(path: Path, how: Decoding, *, people: bool) -> Pool | ImageSet:
    if has_packs(path):
        return cifar10_packs(path)
    if batches := find_batches(path):
        return cifar_batches(*batches)
    if is_tiny_imagenet(path):
        return tiny_imagenet(path, how)
    return from_role_folders(path, how, people=people) if has_roles(path) else from_folder(path, how)


def _from_pack(path: Path, arrays: Arrays) -> Pool:
    pack = decode_pack(path, arrays)
    family = next((family for family in FACE_FAMILIES if path.stem.startswith(family)), "")
    return Pool(path.stem, pack.part, pack.classes, people=bool(family), family=family)


def _other_people(path: Path) -> Path:
    beside = path.parent / OTHER_PEOPLE
    if not beside.exists() or beside == path:
        hint = 'or name one: roles={"auxiliary": …}'
        raise bad_file(path, f"needs auxiliary images of other people: {OTHER_PEOPLE} beside it", hint=hint)
    return beside


def _given(role: Role, found: Pool | ImageSet, other: Pool | ImageSet) -> Part:
    """The part that `other` gives to the set of `found`."""
    part = other.part(role) if isinstance(other, ImageSet) else other.part
    same_classes = bool(other.classes) and other.classes == found.classes
    if role is Role.AUXILIARY:
        if found.people:
            _refuse_same_people(found, other)
        return part if same_classes else part.unlabeled()
    if found.classes and other.classes and not same_classes:
        raise UsageError(f"role {role} from {other.name}: its classes are not those of {found.name}; labels must agree")
    return part


def _refuse_same_people(found: Pool | ImageSet, other: Pool | ImageSet) -> None:
    if not (isinstance(found, Pool) and isinstance(other, Pool)):
        return
    both = found.identities() & other.identities()
    if both:
        count = f"{len(both)} people of {found.name}, such as {min(both)}"
        raise UsageError(f"auxiliary source {other.name} shows {count}; an attacker's people must be others")
