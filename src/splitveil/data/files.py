"""Pixels that stay in their files until they are asked for: image sets larger than memory.

    order of batches ──▶ workers decode whole batches ahead ──▶ uint8 ──▶ device ──▶ float32 / 255

Decoding is the same function as for resident images, so both give the same bits.
"""

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from splitveil.check import UsageError
from splitveil.data.archive import bad_file
from splitveil.data.picture import decode
from splitveil.types import Pixels

CPU = torch.device("cpu")
GLIMPSE = 4096  # bytes read from either end of a file to tell copies apart


@dataclass(frozen=True)
class PixelFiles:
    """Image files that all decode to one shape, and the device their pixels are wanted on."""

    root: Path
    names: tuple[str, ...]  # relative to root
    image_shape: tuple[int, int, int]
    is_resized: bool  # False: files must have the shape as they are
    workers: int = 0
    device: torch.device = CPU

    def __len__(self) -> int:
        return len(self.names)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Number of images, channels, height, width: as a tensor of all pixels would have."""
        return len(self.names), *self.image_shape

    def to(self, device: torch.device | str) -> "PixelFiles":
        """The same files, decoded onto another device."""
        return replace(self, device=torch.device(device))

    def take(self, places: Sequence[int]) -> "PixelFiles":
        """The chosen files, in the order chosen."""
        return replace(self, names=tuple(self.names[place] for place in places))

    def joined(self, other: "PixelFiles") -> "PixelFiles":
        """These files, then those."""
        if self.image_shape != other.image_shape or self.is_resized != other.is_resized:
            raise UsageError(f"files under {self.root} and {other.root} decode differently; give both one size")
        theirs = tuple(str((other.root / name).absolute()) for name in other.names)
        return replace(self, names=(*self.names, *theirs))  # an absolute name ignores the root

    def decode(self, places: Sequence[int]) -> Pixels:
        """Pixels of the files at `places`, in main memory."""
        rows = [self._one(place) for place in places]
        return torch.from_numpy(np.stack(rows) if rows else np.empty((0, *self.image_shape), np.uint8))

    def _one(self, place: int) -> np.ndarray:
        channels, height, width = self.image_shape
        path = self.root / self.names[place]
        pixels = decode(path, size=height if self.is_resized else None, channels=channels)
        if pixels.shape != (height, width, channels):
            got = f"{pixels.shape[1]}×{pixels.shape[0]}"
            raise bad_file(path, f"is {got} where others are {width}×{height}", hint="give one size for all")
        return pixels.transpose(2, 0, 1)

    def gather(self, index: Tensor | slice | None = None) -> Pixels:
        """Pixels of the chosen files on the device; all without an index."""
        places = range(len(self))
        chosen = index.tolist() if isinstance(index, Tensor) else places[slice(None) if index is None else index]
        pixels, unreadable = self.take(chosen).attempt(keep=True)
        for line in unreadable.values():
            raise UsageError(line)
        return pixels.to(self.device)

    def attempt(self, *, keep: bool) -> tuple[Pixels, dict[int, str]]:
        """Decode every file: pixels of those that can be read (none unless `keep`), and why each of the others cannot.

        Threads do it: Pillow decodes outside Python's lock.
        """
        pixels = np.empty((len(self) if keep else 0, *self.image_shape), np.uint8)

        def trouble(place: int) -> str | None:
            try:
                decoded = self._one(place)
            except UsageError as error:
                return str(error)
            if keep:
                pixels[place] = decoded
            return None

        with ThreadPoolExecutor(max(1, self.workers)) as pool:
            lines = list(pool.map(trouble, range(len(self))))
        unreadable = {place: line for place, line in enumerate(lines) if line is not None}
        readable = np.delete(pixels, list(unreadable), axis=0) if keep and unreadable else pixels
        return torch.from_numpy(readable), unreadable

    def stream(self, pieces: Sequence[Tensor]) -> Iterator[Pixels]:
        """Pixels of one batch after another on the device, decoded ahead by worker processes."""
        loader = DataLoader(
            _Decoded(self, pieces),
            batch_size=None,
            num_workers=min(self.workers, _n_cpus()),
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # else it would take numbers from the global one
        )
        for decoded in loader:
            if isinstance(decoded, str):
                raise UsageError(decoded)
            yield decoded.to(self.device, non_blocking=True)

    def fingerprints(self) -> list[bytes]:
        """The same for copies of a file: its length and its two ends."""
        return [_fingerprint(self.root / name) for name in self.names]


class _Decoded(Dataset):
    """Batch number k, decoded; or the line that says why it cannot be, since exceptions grow on their way back."""

    def __init__(self, files: PixelFiles, pieces: Sequence[Tensor]) -> None:
        self._files, self._pieces = files, [piece.tolist() for piece in pieces]

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, k: int) -> Tensor | str:
        try:
            return self._files.decode(self._pieces[k])
        except UsageError as error:
            return str(error)


def _n_cpus() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _fingerprint(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            length = file.seek(0, 2)
            file.seek(0)
            ends = file.read(GLIMPSE)
            file.seek(max(0, length - GLIMPSE))
            ends += file.read(GLIMPSE)
    except OSError as error:
        raise bad_file(path, f"cannot be read ({error.strerror})") from error
    return hashlib.blake2b(f"{length} ".encode() + ends, digest_size=32).digest()
