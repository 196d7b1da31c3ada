"""Fresh views of an attacker's own images: shifted by a few pixels, and mirrored half of the time.

    view[b, c, i, j] = x[b, c, r(i + dy_b), r(j' + dx_b)],    r: reflection at the borders,   j' = j or W − 1 − j

Borders are reflected rather than filled with zeros as in training recipes: no victim has a black frame, and a decoder
that learns to paint them is worse on those that have none.
"""

import torch
from jaxtyping import Int64
from torch import Tensor

from splitveil.randomness import NoiseSource
from splitveil.types import Images

SHARE = 8  # the shift is at most this part of the image's shorter side


def view(x: Images, source: NoiseSource) -> Images:
    """A fresh view of each image. Nothing waits for the device."""
    batch, _, height, width = x.shape
    draws = source.uniform((batch, 3), device=x.device)
    most = min(height, width) // SHARE
    shift = (draws[:, :2] * (2 * most + 1)).long().clamp(max=2 * most) - most
    rows = _reflect(torch.arange(height, device=x.device) + shift[:, :1], height)
    columns = torch.arange(width, device=x.device)
    columns = torch.where(draws[:, 2:] < 0.5, width - 1 - columns, columns)
    columns = _reflect(columns + shift[:, 1:], width)
    each = torch.arange(batch, device=x.device)[:, None, None]
    return x.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _reflect(place: Int64[Tensor, "batch side"], side: int) -> Int64[Tensor, "batch side"]:
    return side - 1 - (side - 1 - place.abs()).abs()
