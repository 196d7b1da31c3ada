"""Many small untrained networks at once: one set of weights per image, all in one batched product.

    h ← ReLU(norm(conv_θ(h)))  at H/4, doubled to H/2 and to H,        logits = conv_θ(h)

Each layer is unfolded into columns and multiplied by its image's own weights: one batched matrix product, which is
faster than a convolution with as many groups as images. Norms are per image and channel, so no image knows another.

Source: Ulyanov et al., "Deep Image Prior" (CVPR 2018), far smaller.
"""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

KERNEL = 3
LEVELS = 3  # resolutions, each twice the one before
INPUT_STD = 0.3

Weights = Float[Tensor, "batch number"]


@final
class Untrained:
    """The shape of such a network; its weights are handed in."""

    def __init__(self, image_shape: tuple[int, int, int], *, width: int) -> None:
        channels, height, width_px = image_shape
        self.sizes = [(-(-height // 2**k), -(-width_px // 2**k)) for k in reversed(range(LEVELS))]
        self.width = width
        self.layers = [(width, width)] * (2 * LEVELS - 1) + [(width, channels)]  # inputs, outputs

    @property
    def n_weights(self) -> int:
        """Numbers that one image's network is made of."""
        return sum(n_out * (n_in * KERNEL**2 + 1) for n_in, n_out in self.layers)

    @property
    def n_held(self) -> int:
        """Numbers held at once for one image's slope, about: every layer's columns, the largest three times."""
        layers = zip(self.layers, self._grids(), strict=True)
        columns = [n_in * KERNEL**2 * rows * across for (n_in, _), (rows, across) in layers]
        return sum(columns) + 2 * max(columns)

    def draw(self, rng: torch.Generator) -> Float[Tensor, " number"]:
        """Fresh weights; the last layer's are small, so that the first image is nearly its base."""
        parts = []
        for i, (n_in, n_out) in enumerate(self.layers):
            scale = (2 / (n_in * KERNEL**2)) ** 0.5 * (0.1 if i == len(self.layers) - 1 else 1.0)
            weight = scale * torch.randn(n_out, n_in * KERNEL**2, generator=rng, device=rng.device)
            parts.append(torch.cat([weight, weight.new_zeros(n_out, 1)], 1).flatten())
        return torch.cat(parts)

    def draw_input(self, rng: torch.Generator) -> Float[Tensor, "1 feature rows columns"]:
        """The noise that every image is painted from."""
        return INPUT_STD * torch.randn(1, self.width, *self.sizes[0], generator=rng, device=rng.device)

    def _grids(self) -> list[tuple[int, int]]:
        """Rows and columns of each layer."""
        return [size for size in self.sizes for _ in range(len(self.layers) // LEVELS)]

    def __call__(
        self, seed_map: Float[Tensor, "1 feature rows columns"], weights: Weights
    ) -> Float[Tensor, "batch channel height width"]:
        """Logits of each image."""
        h, used = seed_map.expand(len(weights), *seed_map.shape[1:]), 0
        for i, ((n_in, n_out), size) in enumerate(zip(self.layers, self._grids(), strict=True)):
            if tuple(h.shape[-2:]) != size:
                h = F.interpolate(h, size=size, mode="bilinear", align_corners=False)
            n = n_out * (n_in * KERNEL**2 + 1)
            h = _conv(h, weights[:, used : used + n].reshape(len(weights), n_out, -1))
            h = h if i == len(self.layers) - 1 else F.leaky_relu(F.instance_norm(h), 0.1)
            used += n
        return h


def _conv(h: Tensor, weights: Float[Tensor, "batch out in1"]) -> Tensor:
    """A 3 × 3 convolution of each image with its own weights; the last column is the bias."""
    columns = F.unfold(h, KERNEL, padding=KERNEL // 2)
    product = torch.baddbmm(weights[:, :, -1:], weights[:, :, :-1], columns)
    return product.reshape(len(h), -1, *h.shape[-2:])
