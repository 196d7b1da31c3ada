"""Named, independent random streams from one seed, and the operating system's generator for deployment.

    stream(seed, *key):   64-bit seed = BLAKE2b(seed, key)      torch's Philox / Mersenne generator on the device

Everything random in training is keyed by (seed, purpose, step, position in the global batch): a run that is stopped and
resumed, or spread over several processes, draws the same numbers. Across ranks this holds because every rank draws
for the whole global batch and keeps its own rows. CPU and GPU generators differ, so streams repeat per kind of device.
"""

import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Key = int | str


def derive(seed: int, *key: Key) -> int:
    """A seed for the stream named `key`, independent of every other name's.

    >>> derive(0, "noise", 1) == derive(0, "noise", 1), derive(0, "noise", 1) == derive(0, "noise", 2)
    (True, False)
    """
    text = "/".join(f"{type(part).__name__}:{part}" for part in (seed, *key))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def stream(seed: int, *key: Key, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh torch.Generator for the stream named `key`."""
    return torch.Generator(device).manual_seed(derive(seed, *key))


@dataclass(frozen=True)
class Rows:
    """Which rows of the global batch this process holds: `first`, `first + 1`, … out of `total`."""

    first: int
    total: int


class NoiseSource(ABC):
    """Where a mechanism's noise comes from. Each call gives fresh numbers."""

    @abstractmethod
    def normal(self, shape: Sequence[int], *, device: torch.device) -> Tensor:
        """Standard normal float32 numbers; the first axis is the batch."""

    @abstractmethod
    def uniform(self, shape: Sequence[int], *, device: torch.device) -> Tensor:
        """Uniform float32 numbers in [0, 1); the first axis is the batch."""


class SeededSource(NoiseSource):
    """Repeatable noise for training, attacks and tests. Not for deployment: whoever knows the seed removes it.

    Guarantees: two sources with the same seed and key give the same numbers in the same order; a source with `rows`
    gives exactly those rows of what a source without it gives for the whole batch.
    """

    def __init__(self, seed: int, *key: Key, rows: Rows | None = None) -> None:
        self._seed = derive(seed, *key)
        self._rows = rows
        self._generators: dict[torch.device, torch.Generator] = {}

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]

    def _draw(self, kind: Callable[..., Tensor], shape: Sequence[int], device: torch.device) -> Tensor:
        whole = list(shape) if self._rows is None else [self._rows.total, *shape[1:]]
        # float32 whatever torch's default is: another dtype would be another stream
        drawn = kind(whole, generator=self._generator(device), device=device, dtype=torch.float32)
        return drawn if self._rows is None else drawn[self._rows.first : self._rows.first + shape[0]]

    def normal(self, shape: Sequence[int], *, device: torch.device) -> Tensor:
        return self._draw(torch.randn, shape, device)

    def uniform(self, shape: Sequence[int], *, device: torch.device) -> Tensor:
        return self._draw(torch.rand, shape, device)


class SystemSource(NoiseSource):
    """Noise from the operating system's cryptographic generator: for deployed clients. It has no seed to leak."""

    def normal(self, shape: Sequence[int], *, device: torch.device) -> Tensor:
        radius = (-2 * torch.log1p(-self._doubles(shape))).sqrt()  # Box–Muller; 1 − u lies in (0, 1]
        return (radius * torch.cos(2 * math.pi * self._doubles(shape))).float().to(device)

    def uniform(self, shape: Sequence[int], *, device: torch.device) -> Tensor:
        bits = torch.frombuffer(bytearray(os.urandom(4 * math.prod(shape))), dtype=torch.int32)
        return ((bits & 0xFFFFFF).float() / 2**24).reshape(list(shape)).to(device)  # 24 bits fill a float32 exactly

    @staticmethod
    def _doubles(shape: Sequence[int]) -> Tensor:
        bits = torch.frombuffer(bytearray(os.urandom(8 * math.prod(shape))), dtype=torch.int64)
        return ((bits & (2**53 - 1)).double() / 2**53).reshape(list(shape))
