"""Learned perceptual distance (Zhang et al. 2018, v0.1, AlexNet), one score per image; weights are in the package.

    lpips = Σ_layer mean_position Σ_channel w_c (f_c(x) − f_c(x̂))²,    f = ReLU features, unit length over channels

Pixels in [0, 1] go to [−1, 1] and are shifted and scaled by the constants of the source. An image whose shorter side is
under 64 pixels is first enlarged bilinearly to 64 (AlexNet's pooling is empty under 31); `is_upsampled` says so, and a
result that carries such a score has to say so too. Gray images are repeated to three channels.
"""

from functools import cache
from importlib.resources import as_file, files

import torch
import torch.nn.functional as F
from jaxtyping import Float
from safetensors.torch import load_file
from torch import Tensor, nn

from splitveil.check import UsageError
from splitveil.metrics.pixel import Scores
from splitveil.types import Images

MIN_SIDE = 64  # pixels; smaller images are enlarged to it
SHIFT = (-0.030, -0.088, -0.188)
SCALE = (0.458, 0.448, 0.450)
TINY = 1e-10  # keeps the length of an all-zero feature away from 0; the source's value
STRIDES = ((4, 2), (1, 2), (1, 1), (1, 1), (1, 1))  # (stride, padding) of AlexNet's convolutions
POOLED = (1, 2)  # convolutions with a 3/2 max pool before them


def is_upsampled(image_shape: tuple[int, ...]) -> bool:
    """Whether images of this (C, H, W) are enlarged before they are compared."""
    return min(image_shape[-2:]) < MIN_SIDE


def lpips(x: Images, x_hat: Images, *, upsample: bool = True) -> Scores:
    """Perceptual distance of each image to its reconstruction: 0 for equal images.

    Guarantees: symmetric; ≥ 0; differentiable everywhere; in float32 whatever autocast says.
    """
    with torch.autocast(x.device.type, enabled=False):
        return _network(x.device).forward(_prepare(x, upsample), _prepare(x_hat, upsample))


class _Distance(nn.Module):
    """AlexNet's five feature layers and the weight of each of their channels."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        for name, value in weights.items():
            self.register_buffer(name.replace(".", "_"), value.float())
        self.register_buffer("shift", torch.tensor(SHIFT).reshape(1, 3, 1, 1))
        self.register_buffer("scale", torch.tensor(SCALE).reshape(1, 3, 1, 1))

    def forward(self, x: Float[Tensor, "batch 3 height width"], x_hat: Float[Tensor, "batch 3 height width"]) -> Scores:
        pairs = zip(self.features(x), self.features(x_hat), strict=True)
        layers = [(a - b).square() * self.get_buffer(f"lins_{i}") for i, (a, b) in enumerate(pairs)]
        return torch.stack([layer.sum(1).mean((1, 2)) for layer in layers]).sum(0)

    def features(self, x: Tensor) -> list[Tensor]:
        """Unit-length features of the five layers."""
        h, found = (2 * x - 1 - self.get_buffer("shift")) / self.get_buffer("scale"), []
        for i, (stride, padding) in enumerate(STRIDES):
            h = F.max_pool2d(h, 3, 2) if i in POOLED else h
            weight, bias = self.get_buffer(f"convs_{i}_weight"), self.get_buffer(f"convs_{i}_bias")
            h = F.conv2d(h, weight, bias, stride=stride, padding=padding).relu()
            found.append(h / (torch.linalg.vector_norm(h, dim=1, keepdim=True) + TINY))  # gradient 0 at h = 0
        return found


@cache
def _network(device: torch.device) -> _Distance:
    """The network on `device`, read once."""
    with as_file(files("splitveil.metrics") / "weights" / "lpips_alex_f16.safetensors") as path:
        return _Distance(load_file(path)).eval().to(device)


def _prepare(x: Images, upsample: bool) -> Float[Tensor, "batch 3 larger wider"]:
    """Three channels, float32, shorter side at least 64 (or as it is, and then at least 31)."""
    if x.shape[1] not in (1, 3):
        raise UsageError(f"lpips needs images of 1 or 3 channels, got {x.shape[1]}")
    x = x.float().expand(-1, 3, -1, -1)
    if not (upsample and is_upsampled(tuple(x.shape))):
        return x
    ratio = MIN_SIDE / min(x.shape[-2:])
    size = [max(MIN_SIDE, round(side * ratio)) for side in x.shape[-2:]]
    return F.interpolate(x, size=size, mode="bilinear", align_corners=False)
