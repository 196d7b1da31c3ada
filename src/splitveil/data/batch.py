"""Batches of a part: shuffled for training, in order for evaluation.

    order(epoch) = randperm(len(part)),  seeded by (seed, "order", epoch)         batch k = order[k·size : (k+1)·size]

The order is drawn on the CPU, so it is the same on every device. With several processes each takes its contiguous
rows of every global batch: rank r of w holds rows ⌊n·r/w⌋ … ⌊n·(r+1)/w⌋ − 1. Parts that stay in files are decoded ahead
by worker processes, in the same order.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from splitveil.check import UsageError, at_least
from splitveil.data.part import Part
from splitveil.randomness import Rows, stream
from splitveil.types import Images, Labels


@dataclass(frozen=True)
class Batch:
    """What one process holds of one global batch."""

    x: Images
    y: Labels
    index: Int64[Tensor, " batch"]  # positions in the part
    rows: Rows  # positions in the global batch


def n_batches(n_images: int, *, size: int, drop_last: bool = True) -> int:
    """How many batches an epoch has.

    >>> n_batches(10, size=4), n_batches(10, size=4, drop_last=False)
    (2, 3)
    """
    at_least("batch size", size, 1)
    return n_images // size if drop_last else -(-n_images // size)


def batches(
    part: Part,
    *,
    size: int,
    seed: int,
    epoch: int,
    start: int = 0,
    rank: int = 0,
    world: int = 1,
    drop_last: bool = True,
) -> Iterator[Batch]:
    """The shuffled batches of one epoch, from batch `start` on; `size` counts the whole of a batch over all ranks.

    Guarantees: without `drop_last` every image comes exactly once; the same (seed, epoch) gives the same batches on
    any device; starting at k gives the tail of starting at 0; the ranks' rows, in order, are the one-process batch.
    """
    if not 0 <= rank < world or size % world:
        raise UsageError(f"batch size {size} must be a multiple of the {world} processes, and rank {rank} one of them")
    count = n_batches(len(part), size=size, drop_last=drop_last)
    if count == 0:
        raise UsageError(f"batch size {size} is larger than the part's {len(part)} images; use a smaller batch")
    order = torch.randperm(len(part), generator=stream(seed, "order", epoch))
    return _slices(part, order, size=size, steps=range(start, count), rank=rank, world=world)


def sweep(part: Part, size: int) -> Iterator[Batch]:
    """All images in stored order, the last batch as short as it falls."""
    count = n_batches(len(part), size=size, drop_last=False)
    return _slices(part, torch.arange(len(part)), size=size, steps=range(count), rank=0, world=1)


def _slices(part: Part, order: Tensor, *, size: int, steps: range, rank: int, world: int) -> Iterator[Batch]:
    wholes = [order[step * size : (step + 1) * size] for step in steps]
    bounds = [(len(whole) * rank // world, len(whole) * (rank + 1) // world) for whole in wholes]
    pieces = [whole[first:end] for whole, (first, end) in zip(wholes, bounds, strict=True)]
    for whole, (first, _), (index, x) in zip(wholes, bounds, part.stream(pieces), strict=True):
        yield Batch(x, part.labels[index], index, Rows(first, len(whole)))
