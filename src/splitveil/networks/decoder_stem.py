"""Features of any shape as a map that a convolutional decoder can start from.

    map     [C, h, w]   itself
    tokens  [T, D]      T = s² or s² + 1: the s × s grid of D channels, a class token repeated over it as D more;
                        any other T: D → width for each token, then T → ⌈H/4⌉·⌈W/4⌉ places mixed linearly
    vector  [D]         D → width · ⌈H/4⌉ · ⌈W/4⌉, linear

Features are shifted and scaled per channel by statistics of the attacker's own releases, so that no rung depends on the
units a client happens to send.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from splitveil.check import UsageError
from splitveil.types import Features

SPREAD = 64  # channels a vector or an irregular set of tokens is spread over
STRIDE = 4  # image pixels per place of that map
TINY = 1e-6  # a constant channel is shifted to zero and not blown up
REDUCED = {1: (0,), 2: (0, 1), 3: (0, 2, 3)}  # what a channel's statistics are taken over, by dimensions of a feature

Map = Float[Tensor, "batch map_channel map_height map_width"]


class Stem(nn.Module):
    """z_sent → map; `channels` and `size` say what comes out."""

    shift: Tensor
    scale: Tensor

    def __init__(self, feature_shape: tuple[int, ...], image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        if len(feature_shape) not in REDUCED:
            wanted = "a vector [D], tokens [T, D] or a map [C, H, W]"
            raise UsageError(f"a decoder takes {wanted}, got features of shape {feature_shape}; flatten them")
        self.feature_shape = feature_shape
        self.arrange = _arrangement(feature_shape, image_shape)
        self.channels, self.size = self.arrange.channels, self.arrange.size
        like = torch.zeros(1, *feature_shape).mean(REDUCED[len(feature_shape)], keepdim=True)[0]
        self.register_buffer("shift", torch.zeros_like(like))
        self.register_buffer("scale", torch.ones_like(like))

    @torch.no_grad()
    def calibrate(self, z_sent: Features) -> None:
        """Take shift and scale from releases of the attacker's own images."""
        std, mean = torch.std_mean(z_sent, dim=REDUCED[z_sent.ndim - 1], keepdim=True)
        self.shift.copy_(mean[0])
        self.scale.copy_(1 / std[0].clamp_min(TINY))

    def forward(self, z_sent: Features) -> Map:
        if tuple(z_sent.shape[1:]) != self.feature_shape:
            raise UsageError(f"decoder was built for features {self.feature_shape}, got {tuple(z_sent.shape[1:])}")
        arranged: Tensor = self.arrange((z_sent - self.shift) * self.scale)
        return arranged


class _AsMap(nn.Module):
    """A map is one already."""

    def __init__(self, feature_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.channels, height, width = feature_shape
        self.size = (height, width)

    def forward(self, z: Tensor) -> Tensor:
        return z


class _AsGrid(nn.Module):
    """Tokens in row order, with or without a class token before them."""

    def __init__(self, feature_shape: tuple[int, ...]) -> None:
        super().__init__()
        tokens, dim = feature_shape
        self.side = math.isqrt(tokens)
        self.has_class_token = tokens != self.side**2
        self.channels, self.size = dim * (1 + self.has_class_token), (self.side, self.side)

    def forward(self, z: Tensor) -> Tensor:
        tokens = z[:, int(self.has_class_token) :].transpose(1, 2)
        grid = tokens.reshape(*tokens.shape[:2], *self.size)
        if not self.has_class_token:
            return grid
        return torch.cat([grid, z[:, 0, :, None, None].expand_as(grid)], 1)


class _Mixed(nn.Module):
    """Tokens without a grid: each to SPREAD channels, then all of them to each place of a map."""

    def __init__(self, feature_shape: tuple[int, ...], size: tuple[int, int]) -> None:
        super().__init__()
        self.channels, self.size = SPREAD, size
        self.narrow = nn.Linear(feature_shape[1], SPREAD)
        self.mix = nn.Linear(feature_shape[0], size[0] * size[1])

    def forward(self, z: Tensor) -> Tensor:
        mixed: Tensor = self.mix(self.narrow(z).transpose(1, 2))
        return mixed.reshape(*mixed.shape[:2], *self.size)


class _Spread(nn.Module):
    """A vector to each place of a map."""

    def __init__(self, feature_shape: tuple[int, ...], size: tuple[int, int]) -> None:
        super().__init__()
        self.channels, self.size = SPREAD, size
        self.spread = nn.Linear(feature_shape[0], SPREAD * size[0] * size[1])

    def forward(self, z: Tensor) -> Tensor:
        spread: Tensor = self.spread(z)
        return spread.reshape(-1, SPREAD, *self.size)


def _arrangement(
    feature_shape: tuple[int, ...], image_shape: tuple[int, int, int]
) -> _AsMap | _AsGrid | _Mixed | _Spread:
    size = (-(-image_shape[1] // STRIDE), -(-image_shape[2] // STRIDE))
    match feature_shape:
        case (_, _, _):
            return _AsMap(feature_shape)
        case (tokens, _) if tokens > 1 and tokens - math.isqrt(tokens) ** 2 in (0, 1):
            return _AsGrid(feature_shape)
        case (_, _):
            return _Mixed(feature_shape, size)
        case _:
            return _Spread(feature_shape, size)
