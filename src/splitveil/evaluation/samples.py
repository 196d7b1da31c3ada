"""Pictures beside numbers: the best, the median and the worst reconstructions of an attack.

Kept as one npz (originals, reconstructions, errors) and one PNG grid: originals above, reconstructions below. Never
kept for images of people.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.types import Pixels

EACH = 4  # pictures of each kind
KINDS = ("best", "median", "worst")
ZOOM = 3  # screen pixels per image pixel, for small images
SMALL = 64  # pixels; larger images are not enlarged
GAP = 2  # image pixels between pictures, and three times that between kinds


@dataclass(frozen=True)
class Samples:
    """Chosen victims with their reconstructions, EACH of every kind, in the order of KINDS."""

    index: tuple[int, ...]
    mse: tuple[float, ...]
    x: Pixels
    x_hat: Pixels


def choose(mse: Float[Tensor, " image"]) -> list[int]:
    """Victims with the lowest, the middle and the highest error.

    >>> choose(torch.arange(20.0))
    [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19]
    """
    order = mse.argsort(stable=True).tolist()
    each = min(EACH, len(order) // len(KINDS)) or 1
    middle = (len(order) - each) // 2
    return order[:each] + order[middle : middle + each] + order[-each:]


def save_grid(samples: Samples, path: Path) -> None:
    """Write the PNG grid."""
    from PIL import Image

    sheet = grid(samples)
    zoom = ZOOM if max(samples.x.shape[-2:]) < SMALL else 1
    sheet = sheet.repeat(zoom, axis=0).repeat(zoom, axis=1)
    Image.fromarray(sheet[:, :, 0] if sheet.shape[2] == 1 else sheet).save(path)


def grid(samples: Samples) -> np.ndarray:
    """Originals above, reconstructions below, kinds apart; white between. Rows × columns × (1 or 3)."""
    n, channels, height, width = samples.x.shape
    shown = channels if channels in (1, 3) else 1
    each = n // len(KINDS)
    gap = np.full((2 * height + GAP, GAP, shown), 255, np.uint8)
    columns: list[np.ndarray] = []
    for i in range(n):
        above, below = (np.moveaxis(part[i, :shown].numpy(), 0, -1) for part in (samples.x, samples.x_hat))
        line = np.full((GAP, width, shown), 255, np.uint8)
        columns += [gap] * (3 if each and i and i % each == 0 else int(i > 0))
        columns.append(np.concatenate([above, line, below], 0))
    return np.concatenate(columns, 1)


def to_pixels(x_hat: Tensor) -> Pixels:
    """Reconstructions as bytes."""
    return (x_hat.clamp(0, 1) * 255).round().to(torch.uint8).cpu()
