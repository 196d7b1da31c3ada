"""The images of one role: resident on a device as uint8, or in files; handed out as float32 in [0, 1].

images(index) = pixels[index] / 255
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from splitveil.check import UsageError
from splitveil.data.files import PixelFiles
from splitveil.types import Images, Pixels

UNLABELED = -1  # an auxiliary image that shows none of the classes: it came from another source


@dataclass(frozen=True)
class Part:
    """The images of one role. All that hold in memory are resident; of larger sets only the labels are.

    Guarantees: `images` is exact, so `(255 · images).round()` gives the stored pixels back; resident or streamed, the
    same files give the same bits.
    """

    pixels: Pixels | PixelFiles
    labels: Int64[Tensor, " image"]

    def __post_init__(self) -> None:
        if isinstance(self.pixels, Tensor) and (self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4):
            got = f"{self.pixels.dtype} of shape {tuple(self.pixels.shape)}"
            raise UsageError(f"pixels must be uint8 of shape (image, channel, height, width), got {got}")
        if self.labels.dtype != torch.int64 or self.labels.shape != (len(self.pixels),):
            got = f"{self.labels.dtype} of shape {tuple(self.labels.shape)}"
            raise UsageError(f"labels must be int64, one for each of {len(self.pixels)} images, got {got}")

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def device(self) -> torch.device:
        """Where the images are handed out."""
        return self.pixels.device

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        _, channels, height, width = self.pixels.shape
        return channels, height, width

    @property
    def n_bytes(self) -> int:
        """Memory the pixels take, or would take."""
        channels, height, width = self.image_shape
        return len(self) * channels * height * width

    @property
    def is_streamed(self) -> bool:
        """Whether the pixels stay in their files."""
        return isinstance(self.pixels, PixelFiles)

    def images(self, index: Tensor | slice | None = None) -> Images:
        """The chosen images (all without an index) as float32 in [0, 1].

        >>> Part(torch.full((1, 1, 1, 1), 51, dtype=torch.uint8), torch.tensor([0])).images()
        tensor([[[[0.2000]]]])
        """
        if isinstance(self.pixels, PixelFiles):
            return _scaled(self.pixels.gather(index))
        return _scaled(self.pixels if index is None else self.pixels[index])

    def stream(self, pieces: Sequence[Tensor]) -> Iterator[tuple[Tensor, Images]]:
        """For each piece (places, on the CPU) its places and its images on the device, one after another."""
        moved = self._moved(pieces)
        if isinstance(self.pixels, PixelFiles):
            for index, pixels in zip(moved, self.pixels.stream(pieces), strict=True):
                yield index, _scaled(pixels)
        else:
            for index in moved:
                yield index, _scaled(self.pixels[index])

    def _moved(self, pieces: Sequence[Tensor]) -> list[Tensor]:
        """The pieces on the device, by one copy."""
        if not pieces:
            return []
        together = torch.cat(list(pieces)).to(self.device)
        ends = list(accumulate(len(piece) for piece in pieces))
        return [together[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]

    def to(self, device: torch.device | str) -> "Part":
        """The same images on another device."""
        return Part(self.pixels.to(device), self.labels.to(device))

    def take(self, n: int) -> "Part":
        """The first `n` images."""
        if not 0 < n <= len(self):
            raise UsageError(f"take needs 1 … {len(self)} images, got {n}")
        return self.select(torch.arange(n, device=self.device))

    def select(self, index: Int64[Tensor, " chosen"]) -> "Part":
        """The chosen images, in the order chosen."""
        if isinstance(self.pixels, PixelFiles):
            return Part(self.pixels.take(index.tolist()), self.labels[index])
        return Part(self.pixels[index], self.labels[index])

    def relabeled(self, labels: Int64[Tensor, " image"]) -> "Part":
        """The same images under other labels."""
        return Part(self.pixels, labels)

    def unlabeled(self) -> "Part":
        """The same images, showing none of the classes."""
        return self.relabeled(torch.full_like(self.labels, UNLABELED))

    def joined(self, other: "Part") -> "Part":
        """These images, then those; both resident or both in files."""
        mine, theirs, labels = self.pixels, other.pixels, torch.cat([self.labels, other.labels])
        if isinstance(mine, PixelFiles) and isinstance(theirs, PixelFiles):
            return Part(mine.joined(theirs), labels)
        if isinstance(mine, PixelFiles) or isinstance(theirs, PixelFiles):
            raise UsageError("a resident part cannot be joined with a streamed one; allow more memory for both")
        return Part(torch.cat([mine, theirs]), labels)

    def loaded(self) -> "Part":
        """The same images, resident."""
        return Part(self.pixels.gather(), self.labels) if isinstance(self.pixels, PixelFiles) else self

    def fingerprints(self) -> list[bytes]:
        """One short key an image; copies have the same. Of files: of the file, not of its pixels."""
        if isinstance(self.pixels, PixelFiles):
            return self.pixels.fingerprints()
        rows = self.pixels.to("cpu").contiguous().flatten(1).numpy()
        return [hashlib.blake2b(row.data, digest_size=32).digest() for row in rows]


def channels_last_part(images: NDArray[np.uint8], labels: NDArray[np.integer]) -> Part:
    """A resident part out of images (N, H, W, C)."""
    pixels = np.array(images.transpose(0, 3, 1, 2), order="C")  # a copy: what was read from a file is not writable
    return Part(torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64)))


def _scaled(pixels: Pixels) -> Images:
    return pixels.float().div_(255)
