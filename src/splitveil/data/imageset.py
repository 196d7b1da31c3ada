"""Images with their facts: who may see which.

    train       private; the split network learns from them            (an insider attack may, under its own name)
    auxiliary   the attacker's own images
    selection   chooses checkpoints, of the network and of attacks; never the victims
    victims     what is reconstructed and scored; nothing is fitted or chosen on them

The four roles hold different images. Pixels are handed out in [0, 1]; normalization belongs to the encoder.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import torch

from splitveil.check import UsageError
from splitveil.data.part import UNLABELED, Part


class Role(StrEnum):
    """Who may see an image."""

    TRAIN = "train"
    AUXILIARY = "auxiliary"
    SELECTION = "selection"
    VICTIMS = "victims"


@dataclass(frozen=True)
class ImageSet:
    """Four disjoint parts of one kind of image, and what is known about them.

    With `people`, classes are identities and the auxiliary, selection and victim images show different people. The
    classifier must know its classes, so `train` holds other photos of the people in selection and victims.

    Guarantees: no part is empty; all share one image shape; labels lie in 0 … n_classes − 1, except that auxiliary
    images may be UNLABELED.
    """

    name: str
    n_classes: int
    train: Part
    auxiliary: Part
    selection: Part
    victims: Part
    classes: tuple[str, ...] = ()
    people: bool = False
    notes: tuple[str, ...] = ()  # what a reader of results should know: absent files, dropped images

    def __post_init__(self) -> None:
        for role in Role:
            self._check(role)
        if self.people:
            self._check_people()
        if self.classes and len(self.classes) != self.n_classes:
            raise UsageError(f"set {self.name!r} names {len(self.classes)} classes but has {self.n_classes}")

    def _check(self, role: Role) -> None:
        part = self.part(role)
        if len(part) == 0:
            raise UsageError(f"role {role} of set {self.name!r} is empty; each of {', '.join(Role)} needs images")
        if part.image_shape != self.image_shape:
            shapes = f"{part.image_shape} but train has {self.image_shape}"
            raise UsageError(f"role {role} of set {self.name!r} has images of shape {shapes}; resize one of them")
        low, high = int(part.labels.min()), int(part.labels.max())
        if low < (UNLABELED if role is Role.AUXILIARY else 0) or high >= self.n_classes:
            wanted = f"0 … {self.n_classes - 1}"
            raise UsageError(f"labels of role {role} of set {self.name!r} must lie in {wanted}, got {low} … {high}")

    def _check_people(self) -> None:
        for one, other in (("auxiliary", "victims"), ("auxiliary", "selection"), ("selection", "victims")):
            known = set(self.part(Role(one)).labels.tolist()) - {UNLABELED}
            both = known & set(self.part(Role(other)).labels.tolist())
            if both:
                count = f"{len(both)} of the same people, such as label {min(both)}"
                raise UsageError(f"roles {one} and {other} of set {self.name!r} show {count}; give each its own")

    def part(self, role: Role) -> Part:
        """The images of one role."""
        match role:
            case Role.TRAIN:
                return self.train
            case Role.AUXILIARY:
                return self.auxiliary
            case Role.SELECTION:
                return self.selection
            case Role.VICTIMS:
                return self.victims

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width of every image."""
        return self.train.image_shape

    @cached_property
    def sha256(self) -> str:
        """Hex SHA-256 of the content: role names, shapes, labels, images. The same on every device.

        A streamed image counts by its file's length and two ends, so the hash is not that of the loaded set.
        """
        digest = hashlib.sha256()
        for role in Role:
            part = self.part(role).to("cpu")
            digest.update(f"{role} {tuple(part.pixels.shape)}".encode())
            for content in (part.labels.numpy().astype("<i8").tobytes(), *part.fingerprints()):
                digest.update(content)
        return digest.hexdigest()

    def to(self, device: torch.device | str) -> "ImageSet":
        """The same set with all four parts on another device."""
        return self.with_parts({role: self.part(role).to(device) for role in Role})

    def with_parts(self, parts: Mapping[Role, Part], *, notes: tuple[str, ...] = ()) -> "ImageSet":
        """This set with some roles' images replaced, and `notes` saying so."""
        return replace(
            self,
            train=parts.get(Role.TRAIN, self.train),
            auxiliary=parts.get(Role.AUXILIARY, self.auxiliary),
            selection=parts.get(Role.SELECTION, self.selection),
            victims=parts.get(Role.VICTIMS, self.victims),
            notes=(*self.notes, *notes),
        )

    def __repr__(self) -> str:
        return f"ImageSet({self.describe()})"

    def describe(self) -> str:
        """One line: name, image shape, classes, images per role, notes."""
        shape = "×".join(map(str, self.image_shape))
        counts = ", ".join(f"{role} {len(self.part(role)):,}" for role in Role)
        kind = "people" if self.people else "classes"
        return "; ".join([f"{self.name}: {shape}, {self.n_classes} {kind}; {counts}", *self.notes])
