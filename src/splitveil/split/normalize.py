"""The encoder's first layer: pixels are [0, 1] everywhere else.

(x − mean) / std            per channel
"""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from splitveil.check import UsageError, positive
from splitveil.types import Images


@final
class Normalize(nn.Module):
    """Shifts and scales each channel of images in [0, 1]."""

    mean: Tensor
    std: Tensor

    def __init__(self, *, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or not mean:
            raise UsageError(f"normalize needs one mean and one std a channel, got {len(mean)} and {len(std)}")
        for value in std:
            positive("normalize std", value)
        self.register_buffer("mean", torch.tensor([float(value) for value in mean]).reshape(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor([float(value) for value in std]).reshape(1, -1, 1, 1))

    def forward(self, x: Images) -> Images:
        if x.shape[1] != self.mean.shape[1]:
            raise UsageError(f"normalize was made for {self.mean.shape[1]} channels, got images with {x.shape[1]}")
        return (x - self.mean) / self.std

    def extra_repr(self) -> str:
        return f"mean={self.mean.flatten().tolist()}, std={self.std.flatten().tolist()}"
