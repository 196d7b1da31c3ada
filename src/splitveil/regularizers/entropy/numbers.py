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
class Numbers:
    """Named arrays of standard normal numbers, filled anew by every call."""

    def __init__(self) -> None:
        self._memory: dict[tuple[object, ...], Tensor] = {}
        self._generators: dict[torch.device, torch.Generator] = {}

    def __call__(
        self, shapes: Mapping[str, tuple[int, ...]], *, seed: int, key: Key, step: int, like: Tensor
    ) -> dict[str, Tensor]:
        """Arrays of these shapes on the device and in the dtype of `like`; valid until the same call comes again."""
        if not shapes:
            return {}
        sizes = [math.prod(shape) for shape in shapes.values()]
        place = (key, *shapes.items(), like.device, like.dtype)
        if place not in self._memory:
            self._memory[place] = torch.empty(sum(sizes), dtype=like.dtype, device=like.device)
        if like.device not in self._generators:
            self._generators[like.device] = torch.Generator(like.device)
        flat = self._memory[place].normal_(generator=self._generators[like.device].manual_seed(derive(seed, key, step)))
        ends = itertools.accumulate(sizes)
        return {
            name: flat[end - size : end].view(shape)
            for (name, shape), size, end in zip(shapes.items(), sizes, ends, strict=True)
        }

    def forget(self) -> None:
        """Give the memory back."""
        self._memory.clear()
        self._generators.clear()

    def __deepcopy__(self, memo: dict[int, object]) -> "Numbers":
        return Numbers()

    def __reduce__(self) -> tuple[type["Numbers"], tuple[()]]:
        return (Numbers, ())
