"""Standard normal numbers for a step, drawn into memory that stays where it is.

All numbers of one purpose come from one launch, keyed by (seed, purpose, step), so a resumed run draws the same; the
memory is used again in the next step, so that a recording (replay.py) can read it.
"""

import itertools
import math
from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from splitveil.randomness import Key, derive


@final
class Drawn:
    """Named arrays of standard normal numbers in one piece of memory."""

    __slots__ = ("_flat", "_generator", "_key", "arrays")

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], key: Key, like: Tensor) -> None:
        sizes = [math.prod(shape) for shape in shapes.values()]
        self._key, self._generator = key, torch.Generator(like.device)
        self._flat = torch.empty(sum(sizes), dtype=like.dtype, device=like.device)
        ends = itertools.accumulate(sizes)
        self.arrays: dict[str, Tensor] = {
            name: self._flat[end - size : end].view(shape)
            for (name, shape), size, end in zip(shapes.items(), sizes, ends, strict=True)
        }

    def fill(self, seed: int, step: int) -> None:
        """Draw anew."""
        self._flat.normal_(generator=self._generator.manual_seed(derive(seed, self._key, step)))


@final
class Numbers:
    """Arrays of standard normal numbers by purpose and shape."""

    def __init__(self) -> None:
        self._drawn: dict[tuple[object, ...], Drawn] = {}

    def __call__(
        self, shapes: Mapping[str, tuple[int, ...]], *, seed: int, key: Key, step: int, like: Tensor
    ) -> dict[str, Tensor]:
        """Arrays of these shapes on the device and in the dtype of `like`; valid until the same call comes again."""
        drawn = self.room(shapes, key=key, like=like)
        if drawn is None:
            return {}
        drawn.fill(seed, step)
        return drawn.arrays

    def room(self, shapes: Mapping[str, tuple[int, ...]], *, key: Key, like: Tensor) -> Drawn | None:
        """Where the numbers of such a call are; None for no numbers."""
        if not shapes:
            return None
        place = (key, *shapes.items(), like.device, like.dtype)
        if place not in self._drawn:
            self._drawn[place] = Drawn(shapes, key, like)
        return self._drawn[place]

    def forget(self) -> None:
        """Give the memory back."""
        self._drawn.clear()

    def __deepcopy__(self, memo: dict[int, object]) -> "Numbers":
        return Numbers()

    def __reduce__(self) -> tuple[type["Numbers"], tuple[()]]:
        return (Numbers, ())
