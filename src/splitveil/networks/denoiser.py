"""A small denoiser: the prior of a diffusion model.

    D(x, σ) = m + c_skip (x − m) + c_out U(c_in (x − m), ln σ),      d = standard deviation of the images about m
    c_skip = d²/(σ² + d²),    c_out = σ d/√(σ² + d²),    c_in = 1/√(σ² + d²)

U is a U-Net of residual blocks with self-attention over its coarsest level; σ scales and shifts every block. An
untrained D is the best affine denoiser of white images of variance d² about m, and training adds what images look like.

Source: Karras et al., "Elucidating the Design Space of Diffusion-Based Generative Models" (2022).
"""

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from splitveil.types import Images

LEVELS = 3  # resolutions, each half of the one before
HEADS = 4
EMBEDDED = 32  # numbers that ln σ is written as, before a small network
GROUPS = 8
Sigma = Float[Tensor, " batch"]


@final
class Denoiser(nn.Module):
    """(x + σ n, σ) → what the image is expected to be.

    Guarantees: any image size; an untrained one shrinks towards the mean image as its noise level demands.
    """

    mean: Tensor
    spread: Tensor
    tones: Tensor

    def __init__(self, image_shape: tuple[int, int, int], *, width: int = 64) -> None:
        super().__init__()
        w, channels = width, image_shape[0]
        self.embed = nn.Sequential(nn.Linear(EMBEDDED, 4 * w), nn.SiLU(), nn.Linear(4 * w, 4 * w), nn.SiLU())
        self.first = nn.Conv2d(channels, w, 3, padding=1)
        self.down0, self.down1 = Block(w, w, 4 * w), Block(w, 2 * w, 4 * w)
        self.low = nn.ModuleList([Block(2 * w, 2 * w, 4 * w), Attention(2 * w), Block(2 * w, 2 * w, 4 * w)])
        self.up1, self.up0 = Block(4 * w, 2 * w, 4 * w), Block(3 * w, w, 4 * w)
        self.last = nn.Sequential(_norm(w), nn.SiLU(), nn.Conv2d(w, channels, 3, padding=1))
        nn.init.zeros_(self.last[2].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.last[2].bias)  # type: ignore[arg-type]
        self.register_buffer("mean", torch.full((1, *image_shape), 0.5))
        self.register_buffer("spread", torch.tensor(0.25))
        self.register_buffer("tones", torch.arange(EMBEDDED // 2) * 0.5)

    @torch.no_grad()
    def calibrate(self, x: Images) -> None:
        """Take the mean image and the spread about it from the attacker's images."""
        self.mean.copy_(x.mean(0, keepdim=True))
        self.spread.copy_((x - self.mean).square().mean().sqrt().clamp_min(1e-3))

    def forward(self, noisy: Images, sigma: Sigma) -> Images:
        s, d = sigma[:, None, None, None], self.spread
        total = (s.square() + d.square()).sqrt()
        centered = noisy - self.mean
        painted = self._paint(centered / total, sigma / d)
        return self.mean + (d / total).square() * centered + s * d / total * painted.float()

    def _paint(self, h: Tensor, level: Sigma) -> Tensor:
        height, width = h.shape[-2:]
        step = 2 ** (LEVELS - 1)
        if height % step or width % step:
            h = F.pad(h, (0, -width % step, 0, -height % step), mode="replicate")
        angle = level.log()[:, None] * self.tones * math.pi / 2
        code = self.embed(torch.cat([angle.cos(), angle.sin()], 1))
        d0 = self.down0(self.first(h), code)
        d1 = self.down1(F.avg_pool2d(d0, 2), code)
        low = F.avg_pool2d(d1, 2)
        for layer in self.low:
            low = layer(low, code)
        u1 = self.up1(torch.cat([_double(low), d1], 1), code)
        u0 = self.up0(torch.cat([_double(u1), d0], 1), code)
        painted: Tensor = self.last(u0)
        return painted[..., :height, :width]


@final
class Block(nn.Module):
    """norm, SiLU, conv; norm, scaled and shifted by the code, SiLU, conv; beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, code: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = _norm(inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2, self.conv2 = _norm(outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.code = nn.Linear(code, 2 * outputs)
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)
        nn.init.zeros_(self.conv2.weight)
        nn.init.zeros_(self.code.weight)

    def forward(self, h: Tensor, code: Tensor) -> Tensor:
        scale, shift = self.code(code)[:, :, None, None].chunk(2, 1)
        body = self.conv1(F.silu(self.norm1(h)))
        body = self.conv2(F.silu(self.norm2(body) * (1 + scale) + shift))
        total: Tensor = body + self.shortcut(h)
        return total


@final
class Attention(nn.Module):
    """Self-attention over all places, added to its input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = _norm(channels)
        self.ask, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)
        nn.init.zeros_(self.out.weight)

    def forward(self, h: Tensor, code: Tensor) -> Tensor:
        asked: Tensor = self.ask(self.norm(h))
        heads = asked.reshape(len(h), 3, HEADS, -1, h.shape[2] * h.shape[3]).transpose(-1, -2)
        mixed = F.scaled_dot_product_attention(heads[:, 0], heads[:, 1], heads[:, 2])
        added: Tensor = h + self.out(mixed.transpose(-1, -2).reshape(h.shape))
        return added


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(math.gcd(GROUPS, channels), channels)


def _double(h: Tensor) -> Tensor:
    """Each number four times. Autocast would have float32 copied, where copies are exact anyway."""
    with torch.autocast(h.device.type, enabled=False):
        return F.interpolate(h, scale_factor=2.0)
