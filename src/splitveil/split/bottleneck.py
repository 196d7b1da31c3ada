"""Fewer channels across the wire.

    client:  z = activation(squeeze(h))          squeeze: C → channels
    server:  h' = expand(z_sent)                 expand:  channels → C

3×3 convolutions with bias for feature maps [batch, C, height, width]; linear maps for tokens [batch, token, C] and
vectors [batch, C]. Maps must have their channels first. The sigmoid keeps features in (0, 1), so one noise level means
the same for every network.

Source: Li et al., "ResSFL" (CVPR 2022): 8 channels on VGG11's 128 make 8×8×8 features of a 32×32 image.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from torch import nn

from splitveil.check import UsageError, at_least, one_of
from splitveil.types import Features

Activation = Literal["sigmoid", "relu", "none"]


@dataclass(frozen=True)
class Bottleneck:
    """How narrow the wire is: `channels` values at each place, after an activation."""

    channels: int = 8
    activation: Activation = "sigmoid"

    def __post_init__(self) -> None:
        at_least("bottleneck channels", self.channels, 1)
        one_of("bottleneck activation", self.activation, get_args(Activation))

    def build(self, features: Features) -> tuple[nn.Module, nn.Module]:
        """Squeeze and expand for features of this shape, on their device and in their dtype, freshly initialized."""
        width = features.shape[1] if features.ndim == 4 else features.shape[-1]
        squeeze = self._layer(features, width, self.channels)
        activated = {"sigmoid": nn.Sigmoid, "relu": nn.ReLU, "none": nn.Identity}[self.activation]()
        expand = self._layer(features, self.channels, width)
        return nn.Sequential(squeeze, activated), expand

    @staticmethod
    def _layer(features: Features, n_in: int, n_out: int) -> nn.Module:
        match features.ndim:
            case 4:
                layer: nn.Module = nn.Conv2d(n_in, n_out, kernel_size=3, padding=1)
            case 2 | 3:
                layer = nn.Linear(n_in, n_out)
            case _:
                shape = tuple(features.shape[1:])
                raise UsageError(f"a bottleneck needs maps, tokens or vectors, got features of shape {shape}")
        return layer.to(device=features.device, dtype=features.dtype)
