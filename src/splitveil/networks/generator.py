"""A generator of images and the critic that it is trained against.

    generator   u ~ N(0, I) → σ(m + B u + N(u))
                N: linear → w·4 channels at H/8 → (double, conv, norm, ReLU) × 3 → conv
    critic      conv → (conv, halve) × 3 → linear → one number; no norms, so that its slope per image means something
    slope       Wᵀ(lean · …(halveᵀ …)): the critic's gradient, layer by layer in reverse

m and B begin as mean and principal components of the attacker's own images, as logits, and N's last layer as zero: the
generator begins as the Gaussian that fits them best, in the directions that u has room for, and learns what they are
beyond it. Begun at random it spends a short training on finding their mean and spread.

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
LEAN = 0.2  # slope of a unit that is off
EDGE = 0.02  # images are kept this far from 0 and 1, where a logit is infinite
Latent = Float[Tensor, "batch latent"]
Picture = Float[Tensor, "batch channel height width"]


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
        last = nn.Conv2d(width, channels, 3, padding=1)
        nn.init.zeros_(last.weight)
        self.rest = nn.Sequential(*blocks, last)
        self.broad = nn.Linear(latent, math.prod(image_shape), bias=False)
        self.register_buffer("base", torch.zeros(1, *image_shape))

    @torch.no_grad()
    def calibrate(self, x: Images) -> None:
        """Take the mean and the principal components from the attacker's own images."""
        logits = x.clamp(EDGE, 1 - EDGE).logit()
        mean = logits.mean(0, keepdim=True)
        self.base.copy_(mean)
        components = _components((logits - mean).flatten(1))[:, : self.latent]
        self.broad.weight.zero_()[:, : components.shape[1]] = components

    def forward(self, u: Latent) -> Images:
        fine: Tensor = self.rest(self.first(u).reshape(len(u), -1, *self.size))
        logits = self.base + self.broad(u).reshape(-1, *self.base.shape[1:])
        return torch.sigmoid(logits + fine[..., : self.height, : self.width_px].float())


def _components(x: Float[Tensor, "image pixel"]) -> Float[Tensor, "pixel component"]:
    """Columns b_k, longest first, with Σ_k b_k b_kᵀ = xᵀx/n: from the smaller of the two matrices that have them."""
    n, dim = x.shape
    values, vectors = torch.linalg.eigh((x @ x.T if n < dim else x.T @ x).double() / n)
    longest_first = vectors.flip(1).to(x)
    lengths = values.flip(0).clamp_min(0).sqrt().to(x)
    columns: Tensor = x.T @ longest_first / math.sqrt(n) if n < dim else longest_first * lengths
    return columns


def _up(inputs: int, outputs: int) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, 3, padding=1)
    norm = nn.GroupNorm(math.gcd(GROUPS, outputs), outputs)
    return nn.Sequential(nn.Upsample(scale_factor=2.0), conv, norm, nn.ReLU())


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

    def forward(self, x: Picture) -> Float[Tensor, " batch"]:
        h = F.leaky_relu(self.first(x), LEAN)
        for down in self.downs:
            h = F.avg_pool2d(F.leaky_relu(down(h), LEAN), 2, ceil_mode=True)
        judged: Tensor = self.last(h.flatten(1))
        return judged[:, 0]

    def slope(self, x: Picture) -> Picture:
        """The gradient of each judgment in its image, written out.

        Trained through autograd's gradient of a gradient, a convolution's kernels would be as large as the image.
        """
        h, leans = x, []
        for conv in (self.first, *self.downs):
            h = conv(h)
            leans.append(torch.full_like(h, LEAN).masked_fill_(h > 0, 1.0))
            h = F.leaky_relu(h, LEAN)
            h = h if conv is self.first else F.avg_pool2d(h, 2, ceil_mode=True)
        back = self.last.weight.reshape(1, *h.shape[1:]).expand_as(h)
        for down, lean in zip(reversed(self.downs), reversed(leans), strict=False):
            assert isinstance(down, nn.Conv2d)
            back = F.conv_transpose2d(_unpool(back, lean.shape[2:]) * lean, down.weight, padding=1)
        return F.conv_transpose2d(back * leans[0], self.first.weight, padding=1)


@final
class Slope(nn.Module):
    """A critic's slope, as a network with the critic's weights."""

    def __init__(self, critic: Critic) -> None:
        super().__init__()
        self.critic = critic

    def forward(self, x: Picture) -> Picture:
        return self.critic.slope(x)


def _unpool(back: Tensor, size: torch.Size) -> Tensor:
    """The transpose of halving a map of this size by means: a window's share goes to each number it has."""
    rows, columns = (torch.arange(0, side, 2, device=back.device).neg().add(side).clamp(max=2) for side in size)
    shares = back / (rows[:, None] * columns)
    return F.interpolate(shares, scale_factor=2.0)[..., : size[0], : size[1]]
