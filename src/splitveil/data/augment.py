"""Random crop and flip of a batch, on its device, in one gather.

    out[b, c, i, j] = padded[b, c, i + dy_b, (W−1−j if flip_b else j) + dx_b]      dy_b, dx_b ~ U{0 … 2·crop}

Padding is zeros, as in the CIFAR recipes whose accuracies are compared with; the background of `fashion` is zero too.
Every sample has its own three draws, so the same source rows give the same views on any number of processes.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn import functional

from splitveil.check import at_least
from splitveil.randomness import NoiseSource
from splitveil.types import Images


@dataclass(frozen=True)
class Augment:
    """Shift by up to `crop` pixels in each direction, and mirror half of the images where `flip`.

    Guarantees: each output is a window of its zero-padded input, mirrored or not; no draw is shared between samples;
    nothing waits for the device. `Augment()` returns its input.
    """

    crop: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        at_least("crop", self.crop, 0, hint="it is the number of pixels an image may shift")

    def __call__(self, images: Images, source: NoiseSource) -> Images:
        """Fresh views of `images`, drawn from `source`."""
        if not self.crop and not self.flip:
            return images
        batch, channels, height, width = images.shape
        draws = source.uniform((batch, 3), device=images.device)
        shifts = self._shifts(draws[:, :2])
        rows = shifts[:, :1] + torch.arange(height, device=images.device)
        columns = torch.arange(width, device=images.device).expand(batch, width)
        if self.flip:
            columns = torch.where(draws[:, 2:] < 0.5, width - 1 - columns, columns)
        columns = columns + shifts[:, 1:]
        padded = functional.pad(images, (self.crop,) * 4)
        place = rows[:, :, None] * padded.shape[3] + columns[:, None, :]  # in a plane read row by row
        gathered = padded.flatten(2).gather(2, place.reshape(batch, 1, -1).expand(-1, channels, -1))
        return gathered.reshape(images.shape)

    def _shifts(self, uniform: Tensor) -> Int64[Tensor, "batch axis"]:
        choices = 2 * self.crop + 1
        return (uniform * choices).long().clamp(max=choices - 1)  # u·n can round up to n in float32
