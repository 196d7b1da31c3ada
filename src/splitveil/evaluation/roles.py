"""Which images play which role in an evaluation."""

import hashlib
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from splitveil.bounds import Parts
from splitveil.check import UsageError
from splitveil.data import ImageSet, Part
from splitveil.randomness import stream
from splitveil.types import Images

SHARES = {"auxiliary": 0.6, "selection": 0.15}  # of a user's own images; the rest are victims
LEAST = 20  # images without which there is nothing to split
CHUNK = 1000  # images at once


@dataclass(frozen=True)
class Roles:
    """Disjoint images: the attacker's own, those that choose checkpoints, those attacked, and the private ones."""

    name: str
    sha256: str
    auxiliary: Part
    selection: Part
    victims: Part
    private: Part | None  # None: no insider can be played
    n_classes: int | None  # None: no labels
    people: bool = False

    def to(self, device: torch.device) -> "Roles":
        """The same images on another device."""
        return replace(
            self,
            auxiliary=self.auxiliary.to(device),
            selection=self.selection.to(device),
            victims=self.victims.to(device),
            private=None if self.private is None else self.private.to(device),
        )

    def for_bounds(self) -> Parts:
        """As bounds need them: fitted to private images, or else to the attacker's own, and read on victims."""
        n_classes = self.n_classes or 1
        shared = not self.people and bool((self.auxiliary.labels >= 0).all())  # the victims' classes
        if self.private is not None:
            return Parts(self.private, self.auxiliary if shared else self.selection, self.victims, n_classes)
        return Parts(self.auxiliary, self.selection, self.victims, n_classes if shared else 1)


def roles_of(data: ImageSet) -> Roles:
    """The roles of an image set."""
    parts = (data.auxiliary, data.selection, data.victims, data.train)
    return Roles(data.name, data.sha256, *parts, data.n_classes, data.people)


def split_roles(
    images: Float[Tensor, "image channel height width"], labels: Int[Tensor, " image"] | None = None
) -> Roles:
    """Deal a user's own images out to roles, the same way each time. A picture that comes twice is dealt once."""
    if not (images.isfinite().all() and images.min() >= 0 and images.max() <= 1):
        span = f"{images.min().item():.3g} … {images.max().item():.3g}"
        raise UsageError(f"images must lie in [0, 1], got {span}; divide bytes by 255 and undo any normalization")
    named = torch.zeros(len(images), dtype=torch.int64) if labels is None else labels.cpu().long()
    whole = Part((images * 255).round().to(torch.uint8).cpu(), named)
    first: dict[bytes, int] = {}
    for i, key in enumerate(whole.fingerprints()):
        first.setdefault(key, i)
    if len(first) < LEAST:
        raise UsageError(f"an audit needs at least {LEAST} different images, got {len(first)}")
    kept = torch.tensor(sorted(first.values()))
    dealt = kept[torch.randperm(len(kept), generator=stream(0, "audit", "roles"))]
    ends = [round(SHARES["auxiliary"] * len(kept)), round(sum(SHARES.values()) * len(kept))]
    auxiliary, selection, victims = (whole.select(index) for index in torch.tensor_split(dealt, ends))
    n_classes = None if labels is None else int(named.max()) + 1
    digest = hashlib.sha256(repr((whole.image_shape, n_classes, named[dealt].tolist())).encode())
    for part in (auxiliary, selection, victims):
        digest.update(b"".join(part.fingerprints()))
    return Roles("own images", digest.hexdigest(), auxiliary, selection, victims, None, n_classes)


def mean_image(part: Part) -> Images:
    """The mean of a part's images, as a batch of one: what an attacker that saw nothing answers with."""
    chunks = [slice(start, min(start + CHUNK, len(part))) for start in range(0, len(part), CHUNK)]
    total = torch.stack([part.images(rows).double().sum(0) for rows in chunks]).sum(0)
    return (total / len(part)).float()[None]
