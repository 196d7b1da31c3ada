"""Which images a bound is fitted to, which choose between its forms, and which it is read on."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from splitveil.bounds.channel import Channel
from splitveil.data import ImageSet, Part
from splitveil.data.part import UNLABELED


@dataclass(frozen=True)
class Parts:
    """Three sets of different images. Nothing that `read` says was fitted or chosen on it."""

    fit: Part
    choose: Part
    read: Part
    n_classes: int  # 1: no labels

    def to(self, device: torch.device) -> "Parts":
        """The same images on another device."""
        return Parts(self.fit.to(device), self.choose.to(device), self.read.to(device), self.n_classes)


@dataclass(frozen=True)
class Points:
    """Clean features of a part, and their classes."""

    z: Float[Tensor, "image dim"]
    classes: Int[Tensor, " image"]


@dataclass(frozen=True)
class Encoded:
    """Clean features of three parts: encoded once, whatever number of releases is asked about."""

    channel: Channel
    fit: Points
    choose: Points
    read: Points
    n_classes: int


def encoded(channel: Channel, parts: Parts) -> Encoded:
    """What the channel makes of every image."""

    def points(part: Part) -> Points:
        return Points(channel.all_features(part), classes_of(part, parts.n_classes))

    return Encoded(channel, points(parts.fit), points(parts.choose), points(parts.read), parts.n_classes)


def classes_of(part: Part, n_classes: int) -> Int[Tensor, " image"]:
    """Its labels; all alike where there are none."""
    return part.labels if n_classes > 1 else torch.zeros_like(part.labels)


def parts_of(data: ImageSet) -> Parts:
    """Fitted to train, chosen on auxiliary (selection, where auxiliary images show other classes), read on victims."""
    labeled = bool((data.auxiliary.labels != UNLABELED).all())
    shared = not data.people and labeled
    return Parts(data.train, data.auxiliary if shared else data.selection, data.victims, data.n_classes)


def some(part: Part, n: int, generator: torch.Generator) -> Part:
    """`n` random images of a part, or all of them in random order."""
    order = torch.randperm(len(part), generator=generator, device=generator.device)
    return part.select(order[:n].to(part.labels.device))
