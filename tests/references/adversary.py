"""A live decoder's error, written out in float64: stem, convolutions, group norms, sigmoid, from its weights alone."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F


def decoder_mse(weights: Mapping[str, Tensor], x: Tensor, z_sent: Tensor) -> Tensor:
    """MSE(x, D(z_sent)) of a decoder that doubles a map twice."""
    w = {name: value.double() for name, value in weights.items()}
    h = (z_sent.double() - w["stem.shift"]) * w["stem.scale"]
    h = _norm(F.conv2d(h, w["trunk.first.0.weight"], padding=1), w, "trunk.first.1").relu()
    h = _norm(F.conv2d(h, w["trunk.rest.1.weight"], padding=1), w, "trunk.rest.2").relu()
    h = F.conv_transpose2d(h, w["trunk.rest.4.weight"], stride=2, padding=1)
    h = _norm(h, w, "trunk.rest.5").relu()
    h = F.conv2d(h, w["trunk.rest.7.weight"], w["trunk.rest.7.bias"], padding=1)
    n, _, height, width = h.shape  # four pictures folded into one of twice the size
    picture = h.reshape(n, -1, 2, 2, height, width).permute(0, 1, 4, 2, 5, 3).reshape(n, -1, 2 * height, 2 * width)
    x_hat = 1 / (1 + torch.exp(-(picture + w["base"])))
    return ((x.double() - x_hat) ** 2).mean()


def _norm(h: Tensor, w: Mapping[str, Tensor], name: str) -> Tensor:
    """Eight groups of channels, each image by itself."""
    grouped = h.reshape(len(h), 8, -1)
    mean, var = grouped.mean(2, keepdim=True), grouped.var(2, unbiased=False, keepdim=True)
    alone = ((grouped - mean) / (var + 1e-5).sqrt()).reshape(h.shape)
    return alone * w[f"{name}.weight"][:, None, None] + w[f"{name}.bias"][:, None, None]
