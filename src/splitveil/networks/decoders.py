"""The decoder ladder: networks that paint an image from what crossed the wire.

    x̂ = σ(trunk(stem(z_sent), label) + logit(mean image))

The last term is fixed: a fit starts at the mean auxiliary image and only learns what the features add to it. Statistics
of features and images come from `calibrate`, on auxiliary pairs.
"""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from splitveil.check import UsageError, one_of
from splitveil.networks.decoder_stem import Stem
from splitveil.networks.decoder_trunks import ConvTrunk, ResidualTrunk
from splitveil.networks.decoder_unet import UNetTrunk
from splitveil.types import Features, Images, Labels

Rung = Literal["conv", "residual", "unet"]
RUNGS: tuple[Rung, ...] = get_args(Rung)
EDGE = 0.02  # the mean image is kept this far from 0 and 1, where a logit is infinite

_TRUNKS: dict[str, type[ConvTrunk] | type[ResidualTrunk] | type[UNetTrunk]] = {
    "conv": ConvTrunk,
    "residual": ResidualTrunk,
    "unet": UNetTrunk,
}


class Decoder(nn.Module):
    """z_sent → x̂ in [0, 1], for features of any shape; with `n_classes`, given the label too.

    Guarantees: output has `image_shape` and lies in [0, 1]; a label of −1 (unknown) has an embedding of its own; labels
    mean nothing before a fit.
    """

    base: Tensor

    def __init__(
        self,
        rung: Rung,
        *,
        feature_shape: tuple[int, ...],
        image_shape: tuple[int, int, int],
        n_classes: int | None = None,
    ) -> None:
        super().__init__()
        one_of("decoder", rung, RUNGS)
        self.stem = Stem(feature_shape, image_shape)
        self.trunk = _TRUNKS[rung](self.stem.channels, self.stem.size, image_shape)
        self.label = None if n_classes is None else nn.Embedding(n_classes + 1, self.trunk.width)
        if self.label is not None:
            nn.init.zeros_(self.label.weight)  # begun at random it is noise first, and a fit ends worse than without it
        self.register_buffer("base", torch.zeros(image_shape))

    @torch.no_grad()
    def calibrate(self, x: Images, z_sent: Features) -> None:
        """Take the units of the features and the mean image from auxiliary pairs."""
        self.stem.calibrate(z_sent)
        self.base.copy_(x.mean(0).clamp(EDGE, 1 - EDGE).logit())

    def forward(self, z_sent: Features, y: Labels | None = None) -> Images:
        if (y is None) != (self.label is None):
            wanted = "needs" if y is None else "takes no"
            raise UsageError(f"this decoder {wanted} labels; build it {'without' if y is None else 'with'} n_classes")
        condition = self.label(y + 1) if self.label is not None and y is not None else None
        logits: Tensor = self.trunk(self.stem(z_sent), condition)
        return torch.sigmoid(logits.float() + self.base)
