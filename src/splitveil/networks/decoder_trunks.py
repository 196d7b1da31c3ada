"""The convolutional trunks of the decoder ladder: a map → logits of an image.

    conv       conv → conv → (transposed conv, half the channels) per doubling but one → conv → pixel shuffle
    residual   block C→64 → 8 blocks of 64 → (transposed conv) per doubling → block 64→channels

`residual` is the inversion network of the split-inference literature: about 0.71 M parameters from an 8×8×8 cut to a
32×32 image. A map is doubled until it reaches the image's size; what doubling cannot reach is resized bilinearly.
Batch-norm statistics are those of the fit; at attack time the network is in eval mode, so they never come from victims.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from splitveil.networks.decoder_stem import Map

WIDTH = 64  # channels at the feature map's resolution
BLOCKS = 8  # residual blocks of equal width
MIN_WIDTH = 16  # channels that `conv` never goes below

Condition = Float[Tensor, "batch trunk_width"]
Picture = Float[Tensor, "batch channel height width"]  # logits


def doublings(size: tuple[int, int], image_size: tuple[int, int]) -> int:
    """How many times a map is doubled to come nearest to the image's size.

    >>> doublings((8, 8), (32, 32)), doublings((7, 7), (28, 28)), doublings((32, 32), (32, 32))
    (2, 2, 0)
    """
    ratio = math.sqrt(image_size[0] * image_size[1] / (size[0] * size[1]))
    return max(0, round(math.log2(ratio)))


def resize(h: Tensor, size: tuple[int, int]) -> Tensor:
    """`h` at `size` and in its own precision, which autocast would raise; itself if it has that size already."""
    if tuple(h.shape[-2:]) == size:
        return h
    if torch.compiler.is_compiling() and all(new % old == 0 for new, old in zip(size, h.shape[-2:], strict=True)):
        return _grown(h, size)
    return F.interpolate(h, size=size, mode="bilinear", align_corners=False).to(h.dtype)


def _grown(h: Tensor, size: tuple[int, int]) -> Tensor:
    """Bilinear, a whole number of times larger, in sums of neighbors: compiled, these melt into what is around them."""
    for dim in (2, 3):
        n = h.shape[dim]
        before = torch.cat([h.narrow(dim, 0, 1), h.narrow(dim, 0, n - 1)], dim)
        after = torch.cat([h.narrow(dim, 1, n - 1), h.narrow(dim, n - 1, 1)], dim)
        times = size[dim - 2] // n
        places = [(i + 0.5) / times - 0.5 for i in range(times)]  # from a pixel's middle, in pixels
        grown = [(1 - abs(place)) * h + abs(place) * (before if place < 0 else after) for place in places]
        h = torch.stack(grown, dim + 1).flatten(dim, dim + 1)
    return h


class ConvTrunk(nn.Module):
    """Plain convolutions: small and fast, the ladder's first rung."""

    width = WIDTH

    def __init__(self, channels: int, size: tuple[int, int], image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.image_size = image_shape[1:]
        self.first = nn.Sequential(nn.Conv2d(channels, WIDTH, 3, padding=1, bias=False), nn.BatchNorm2d(WIDTH))
        layers: list[nn.Module] = [nn.ReLU(), *_conv(WIDTH, WIDTH)]
        n, wide = doublings(size, self.image_size), WIDTH
        for _ in range(n - 1):
            narrow = max(MIN_WIDTH, wide // 2)
            up = nn.ConvTranspose2d(wide, narrow, 4, stride=2, padding=1, bias=False)
            layers += [up, nn.BatchNorm2d(narrow), nn.ReLU()]
            wide = narrow
        fold = 2 if n else 1  # the last doubling is painted as four pictures: no wide map at full size
        last = nn.Conv2d(wide, fold**2 * image_shape[0], 3, padding=1)
        self.rest = nn.Sequential(*layers, last, nn.PixelShuffle(fold))

    def forward(self, h: Map, condition: Condition | None) -> Picture:
        """Logits of the image; `condition` is added to each place of the first layer's output."""
        h = self.first(h)
        h = h if condition is None else h + condition[:, :, None, None]
        return resize(self.rest(h), self.image_size)


class ResidualTrunk(nn.Module):
    """Residual blocks at the feature map's resolution, then transposed convolutions: the literature's decoder."""

    width = WIDTH

    def __init__(self, channels: int, size: tuple[int, int], image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.image_size = image_shape[1:]
        self.first = ResidualBlock(channels, WIDTH)
        self.blocks = nn.Sequential(*[ResidualBlock(WIDTH, WIDTH) for _ in range(BLOCKS)])
        ups = [
            nn.ConvTranspose2d(WIDTH, WIDTH, 3, stride=2, padding=1, output_padding=1)
            for _ in range(doublings(size, self.image_size))
        ]
        self.up = nn.Sequential(*[layer for up in ups for layer in (up, nn.ReLU())])
        self.last = ResidualBlock(WIDTH, image_shape[0], is_last=True)

    def forward(self, h: Map, condition: Condition | None) -> Picture:
        """Logits of the image; `condition` is added to each place of the first block's output."""
        h = self.first(h)
        h = h if condition is None else h + condition[:, :, None, None]
        return resize(self.last(self.up(self.blocks(h))), self.image_size)


class ResidualBlock(nn.Module):
    """conv, norm, ReLU, conv, norm, beside a shortcut; a last block has no ReLU after the sum.

    The second norm starts at zero, so that a fresh block is its shortcut: deep stacks then learn from the first step.
    """

    def __init__(self, inputs: int, outputs: int, *, is_last: bool = False) -> None:
        super().__init__()
        norm = nn.BatchNorm2d(outputs)
        nn.init.zeros_(norm.weight)
        self.body = nn.Sequential(*_conv(inputs, outputs), nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), norm)
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)
        self.is_last = is_last

    def forward(self, h: Float[Tensor, "batch inputs height width"]) -> Float[Tensor, "batch outputs height width"]:
        total: Tensor = self.body(h) + self.shortcut(h)
        return total if self.is_last else F.relu(total)


def _conv(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
