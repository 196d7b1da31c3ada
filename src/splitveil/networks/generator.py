"""A generator of images and the critic that it is trained against.

    generator   u ~ N(0, I) → linear → w·4 channels at H/8 → (double, conv, norm, ReLU) × 3 → σ(conv + logit mean)
    critic      conv → (conv, halve) × 3 → linear → one number; no norms, so that its slope per image means something

Source: Gulrajani et al., "Improved Training of Wasserstein GANs" (2017).
"""

import math
from itertools import pairwise
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from splitveil.types import Images

DOUBLINGS = 3
GROUPS = 8
EDGE = 0.02  # the mean image is kept this far from 0 and 1, where a logit is infinite
Latent = Float[Tensor, "batch latent"]


@final
class Generator(nn.Module):
    """u → an image in [0, 1]. Norms are per image: no image depends on the others of its batch."""

    base: Tensor

    def __init__(self, image_shape: tuple[int, int, int], *, latent: int = 128, width: int = 64) -> None:
        super().__init__()
        channels, self.height, self.width_px = image_shape
        self.latent = latent
        self.size = tuple(-(-side // 2**DOUBLINGS) for side in image_shape[1:])
        widths = [4 * width, 4 * width, 2 * width, width]
        self.first = nn.Linear(latent, widths[0] * self.size[0] * self.size[1])
        blocks = [_up(wide, narrow) for wide, narrow in pairwise(widths)]
        self.rest = nn.Sequential(*blocks, nn.Conv2d(width, channels, 3, padding=1))
        self.register_buffer("base", torch.zeros(1, *image_shape))

    @torch.no_grad()
    def calibrate(self, x: Images) -> None:
        """Take the mean image from the attacker's own."""
        self.base.copy_(x.mean(0, keepdim=True).clamp(EDGE, 1 - EDGE).logit())

    def forward(self, u: Latent) -> Images:
        logits: Tensor = self.rest(self.first(u).reshape(len(u), -1, *self.size))
        return torch.sigmoid(logits[..., : self.height, : self.width_px].float() + self.base)


def _up(inputs: int, outputs: int) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, 3, padding=1)
    return nn.Sequential(
        nn.Upsample(scale_factor=2.0), conv, nn.GroupNorm(math.gcd(GROUPS, outputs), outputs), nn.ReLU()
    )


@final
class Critic(nn.Module):
    """Images, centered and in units of their spread → how real each looks."""

    def __init__(self, image_shape: tuple[int, int, int], *, width: int = 64) -> None:
        super().__init__()
        channels, *size = image_shape
        widths = [width, 2 * width, 4 * width, 4 * width]
        self.first = nn.Conv2d(channels, width, 3, padding=1)
        self.downs = nn.ModuleList([nn.Conv2d(narrow, wide, 3, padding=1) for narrow, wide in pairwise(widths)])
        places = [-(-side // 2**DOUBLINGS) for side in size]
        self.last = nn.Linear(widths[-1] * places[0] * places[1], 1)

    def forward(self, x: Float[Tensor, "batch channel height width"]) -> Float[Tensor, " batch"]:
        h = F.leaky_relu(self.first(x), 0.2)
        for down in self.downs:
            h = F.avg_pool2d(F.leaky_relu(down(h), 0.2), 2, ceil_mode=True)
        judged: Tensor = self.last(h.flatten(1))
        return judged[:, 0]
