"""The ladder's third rung: an attention U-Net from a map to logits of an image.

    m  = conv(map)                                           4w channels at the map's own resolution
    d₀ = block(resize(narrow(m)))                            w channels at the image's size
    d₁ = block(halve d₀),   d₂ = attend(block(halve d₁ ⊕ resize m))
    u₁ = block(double d₂ ⊕ gate(d₁, d₂)),   u₀ = block(double u₁ ⊕ gate(d₀, u₁)),   logits = conv(u₀)

`gate` is Oktay et al. 2018: skip · σ(ψ(ReLU(W_s skip + W_g coarse))). `attend` is self-attention over all places of the
coarsest level, so a pixel can draw on features far from it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from splitveil.networks.decoder_stem import Map
from splitveil.networks.decoder_trunks import Condition, Picture, ResidualBlock, resize

WIDTH = 32  # channels at the image's size; doubled at each of two coarser levels
HEADS = 4


class UNetTrunk(nn.Module):
    """Attention U-Net: sees the whole image while it paints each pixel."""

    width = 4 * WIDTH

    def __init__(self, channels: int, size: tuple[int, int], image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        w = WIDTH
        self.image_size = image_shape[1:]
        self.first = ResidualBlock(channels, 4 * w)
        self.narrow = nn.Conv2d(4 * w, w, 1)
        self.down0, self.down1 = ResidualBlock(w, w), ResidualBlock(w, 2 * w)
        self.down2, self.attend = ResidualBlock(6 * w, 4 * w), Attend(4 * w)
        self.gate1, self.gate0 = Gate(2 * w, 4 * w), Gate(w, 2 * w)
        self.lift1, self.lift0 = nn.Conv2d(4 * w, 2 * w, 1), nn.Conv2d(2 * w, w, 1)
        self.up1, self.up0 = ResidualBlock(4 * w, 2 * w), ResidualBlock(2 * w, w)
        self.last = nn.Conv2d(w, image_shape[0], 3, padding=1)

    def forward(self, h: Map, condition: Condition | None) -> Picture:
        """Logits of the image; `condition` is added to each place of the first block's output."""
        m = self.first(h)
        m = m if condition is None else m + condition[:, :, None, None]
        d0 = self.down0(resize(self.narrow(m), self.image_size))
        d1 = self.down1(F.avg_pool2d(d0, 2, ceil_mode=True))
        coarse = F.avg_pool2d(d1, 2, ceil_mode=True)
        d2 = self.attend(self.down2(torch.cat([coarse, resize(m, _size(coarse))], 1)))
        u1 = self.up1(torch.cat([resize(self.lift1(d2), _size(d1)), self.gate1(d1, d2)], 1))
        u0 = self.up0(torch.cat([resize(self.lift0(u1), _size(d0)), self.gate0(d0, u1)], 1))
        logits: Tensor = self.last(u0)
        return logits


class Gate(nn.Module):
    """How much of each place of a skip connection is let through, judged from the coarser level."""

    def __init__(self, skip: int, coarse: int) -> None:
        super().__init__()
        self.of_skip, self.of_coarse = nn.Conv2d(skip, skip, 1), nn.Conv2d(coarse, skip, 1)
        self.judge = nn.Conv2d(skip, 1, 1)

    def forward(self, skip: Tensor, coarse: Tensor) -> Tensor:
        seen = F.relu(self.of_skip(skip) + resize(self.of_coarse(coarse), _size(skip)))
        passed: Tensor = skip * torch.sigmoid(self.judge(seen))
        return passed


class Attend(nn.Module):
    """Self-attention over all places, added to its input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.ask, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)
        nn.init.zeros_(self.out.weight)  # starts as the identity

    def forward(self, h: Tensor) -> Tensor:
        asked: Tensor = self.ask(self.norm(h))
        heads = asked.reshape(len(h), 3, HEADS, -1, h.shape[2] * h.shape[3]).transpose(-1, -2)
        mixed = F.scaled_dot_product_attention(heads[:, 0], heads[:, 1], heads[:, 2])
        added: Tensor = h + self.out(mixed.transpose(-1, -2).reshape(h.shape))
        return added


def _size(h: Tensor) -> tuple[int, int]:
    return h.shape[-2], h.shape[-1]
