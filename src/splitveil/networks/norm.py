"""A group norm for maps whose channels lie last in memory, as a GPU's convolutions want them.

    y_c = (h_c − mean_g) / √(var_g + ε) · γ_c + β_c,        mean and variance over places and the channels of c's group

Torch's own turns such a map around in memory and back on a GPU, and autocast has it work in float32. This one keeps
order and precision of the map; its sums are float32. `benchmarks/priors.py` compares the two.
"""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

Map = Float[Tensor, "batch channel height width"]


@final
class GroupNorm(nn.GroupNorm):
    """The same numbers as torch's, up to rounding."""

    def forward(self, h: Map) -> Map:
        if h.device.type == "cuda" and not h.is_contiguous():
            return keeping_order(h, self.num_groups, self.weight, self.bias, self.eps)
        return super().forward(h)


def keeping_order(h: Map, groups: int, weight: Tensor, bias: Tensor, eps: float) -> Map:
    """The norm, by sums over places that never move a number."""
    with torch.autocast(h.device.type, enabled=False):
        batch, channels = h.shape[:2]
        exact = torch.promote_types(h.dtype, torch.float32)
        share = h[0].numel() // groups  # numbers of a group
        mean = _grouped(h.sum((2, 3), dtype=exact), groups) / share
        square = _grouped(torch.linalg.vector_norm(h, dim=(2, 3), dtype=exact).square(), groups) / share
        steep = (square - mean.square()).clamp_min(0).add(eps).rsqrt()
        scale = (steep.expand(-1, -1, channels // groups).reshape(batch, channels)) * weight
        shift = bias - scale * mean.expand(-1, -1, channels // groups).reshape(batch, channels)
        return torch.addcmul(shift.to(h.dtype)[:, :, None, None], h, scale.to(h.dtype)[:, :, None, None])


def _grouped(sums: Float[Tensor, "batch channel"], groups: int) -> Float[Tensor, "batch group 1"]:
    return sums.reshape(len(sums), groups, -1).sum(2, keepdim=True)
