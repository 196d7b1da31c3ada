"""Points of many classes, read in tiles that each hold members of one class only.

    class sizes 3, 5, tile length 4 →  [a a a ·] [b b b b] [b · · ·]        at most one partly empty tile a class

A tile is multiplied with what belongs to its class (centers, precisions) in one batched matrix product. Up to 1 GiB the
tiles are laid out in memory once; beyond that a part of them is gathered, used while it is in cache, and dropped.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from splitveil.check import UsageError

TILE = 256  # points at most: enough for an efficient product, little padding in small classes
CPU_PART = 16 << 20  # bytes at a time: near the cache, and the allocator hands the same pages out again
DEVICE_PART = 1 << 30  # bytes: an accelerator wants few large launches
MOST_LAID = 1 << 30  # bytes of points that are copied into their tiles


@dataclass(frozen=True)
class Part:
    """Some tiles, gathered."""

    points: Float[Tensor, "tile slot dim"]
    real: Float[Tensor, "tile slot"]  # 1 for a point, 0 for padding
    label: Int[Tensor, "tile"]
    where: slice  # which tiles of all


@dataclass(frozen=True)
class Tiles:
    """All points in tiles of one class each."""

    points: Float[Tensor, "point dim"]
    index: Int[Tensor, "tile slot"]  # padding repeats point 0
    real: Float[Tensor, "tile slot"]
    label: Int[Tensor, "tile"]
    place: Int[Tensor, "point"]  # in the flattened tiles
    count: Float[Tensor, "class"]
    shift: Float[Tensor, "class dim"] | None = None  # subtracted from every point of the class
    laid: Float[Tensor, "tile slot dim"] | None = None  # the shifted points in their tiles

    def parts(self, *, into: Tensor | None = None) -> Iterator[Part]:
        """The tiles, as many at a time as suit the device; with `into`, as they are gathered into it, not shifted."""
        whole = CPU_PART if self.points.device.type == "cpu" else DEVICE_PART
        n = max(1, whole // (self.index.shape[1] * self.points.shape[1] * self.points.element_size()))
        for first in range(0, len(self.label), n):
            where = slice(first, first + n)
            points = self._gathered(where, into) if self.laid is None else self.laid[where]
            yield Part(points, self.real[where], self.label[where], where)

    def _gathered(self, where: slice, into: Tensor | None) -> Tensor:
        index = self.index[where]
        if into is not None:
            torch.index_select(self.points, 0, index.flatten(), out=into[where].view(-1, self.points.shape[1]))
            return into[where]
        points = self.points.index_select(0, index.flatten()).view(*index.shape, -1)
        return points if self.shift is None else points.sub_(self.shift[self.label[where]][:, None])

    def about(self, shift: Float[Tensor, "class dim"]) -> "Tiles":
        """The same points about one point of each class, in memory if they fit."""
        there = replace(self, shift=shift, laid=None)
        if there.index.numel() * there.points.shape[1] * there.points.element_size() > MOST_LAID:
            return there
        laid = there.points.new_empty(*there.index.shape, there.points.shape[1])
        for part in there.parts(into=laid):
            part.points.sub_(shift[part.label][:, None])
        return replace(there, laid=laid)

    def to_points(self, laid: Tensor) -> Tensor:
        """From one value a slot to one a point."""
        return laid.flatten().index_select(0, self.place)

    def to_slots(self, values: Tensor) -> Tensor:
        """From one value a point to one a slot; padding gets 0."""
        return values.new_zeros(self.index.numel()).index_copy_(0, self.place, values).view_as(self.index)

    def class_mean(self) -> Float[Tensor, "class dim"]:
        """Mean of the points of each class; 0 without any."""
        total = self.points.new_zeros(len(self.count), self.points.shape[1])
        for part in self.parts():
            total.index_add_(0, part.label, (part.real.unsqueeze(1) @ part.points)[:, 0])
        return total / self.count.clamp_min(1).unsqueeze(-1)


def lay_out(points: Float[Tensor, "point dim"], labels: Int[Tensor, "point"], n_classes: int) -> Tiles:
    """Sort the points of every class into tiles of their own."""
    if len(points) == 0:
        raise UsageError("there are no points to group; collect features first (call fit in every step)")
    count = torch.bincount(labels, minlength=n_classes)
    slot = min(TILE, 1 << max(0, math.ceil(len(points) / n_classes) - 1).bit_length())
    n_tiles = -(-count // slot)
    order = torch.argsort(labels, stable=True)
    rank = torch.arange(len(points), device=points.device) - (count.cumsum(0) - count)[labels[order]]
    place = torch.empty_like(order)
    place[order] = (n_tiles.cumsum(0) - n_tiles)[labels[order]] * slot + rank
    label = torch.repeat_interleave(torch.arange(n_classes, device=points.device), n_tiles)
    index = place.new_zeros(len(label) * slot).index_copy_(0, place, torch.arange(len(points), device=points.device))
    real = points.new_zeros(len(label) * slot).index_fill_(0, place, 1.0)
    return Tiles(points, index.view(-1, slot), real.view(-1, slot), label, place, count.to(points.dtype))


def sample(labels: Int[Tensor, "point"], most: int, generator: torch.Generator) -> Int[Tensor, "kept"]:
    """Indices of up to `most` random points of every class."""
    mixed = torch.randperm(len(labels), generator=generator, device=generator.device).to(labels.device)
    order = mixed[torch.argsort(labels[mixed], stable=True)]
    count = torch.bincount(labels)
    rank = torch.arange(len(labels), device=labels.device) - (count.cumsum(0) - count)[labels[order]]
    return order[rank < most]


def one_hot(choice: Int[Tensor, "tile slot"], n_groups: int, real: Float[Tensor, "tile slot"]) -> Tensor:
    """1 where a real slot has chosen a group: [tile, slot, group]."""
    groups = torch.arange(n_groups, device=choice.device)
    return (choice.unsqueeze(-1) == groups).to(real.dtype).mul_(real.unsqueeze(-1))
