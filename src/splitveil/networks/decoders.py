"""The decoder ladder: networks that paint an image from what crossed the wire.

    x̂ = σ(trunk(stem(z_sent), told) + logit(mean image))        told: nothing, the label, or the server's logits

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
from splitveil.types import Features, Images, Labels, Logits

Rung = Literal["conv", "residual", "unet"]
RUNGS: tuple[Rung, ...] = get_args(Rung)
EDGE = 0.02  # the mean image is kept this far from 0 and 1, where a logit is infinite

_TRUNKS: dict[str, type[ConvTrunk] | type[ResidualTrunk] | type[UNetTrunk]] = {
    "conv": ConvTrunk,
    "residual": ResidualTrunk,
    "unet": UNetTrunk,
}


class Decoder(nn.Module):
    """z_sent → x̂ in [0, 1], for features of any shape; with `n_classes` told the label too, with `n_logits` logits.

    Guarantees: output has `image_shape` and lies in [0, 1]; a label of −1 (unknown) has an embedding of its own; what
    is told means nothing before a fit.
    """

    base: Tensor

    def __init__(
        self,
        rung: Rung,
        *,
        feature_shape: tuple[int, ...],
        image_shape: tuple[int, int, int],
        n_classes: int | None = None,
        n_logits: int | None = None,
    ) -> None:
        super().__init__()
        one_of("decoder", rung, RUNGS)
        if n_classes is not None and n_logits is not None:
            raise UsageError("a decoder is told labels or logits, not both; leave n_classes or n_logits out")
        self.stem = Stem(feature_shape, image_shape)
        self.trunk = _TRUNKS[rung](self.stem.channels, self.stem.size, image_shape)
        self.told = _listener(n_classes, n_logits, self.trunk.width)
        self.register_buffer("base", torch.zeros(image_shape))

    @torch.no_grad()
    def calibrate(self, x: Images, z_sent: Features) -> None:
        """Take the units of the features and the mean image from auxiliary pairs."""
        self.stem.calibrate(z_sent)
        self.base.copy_(x.mean(0).clamp(EDGE, 1 - EDGE).logit())

    def forward(self, z_sent: Features, told: Labels | Logits | None = None) -> Images:
        if (told is None) != (self.told is None):
            wanted, built = ("needs", "without") if told is None else ("takes no", "with")
            raise UsageError(f"this decoder {wanted} labels or logits; build it {built} n_classes or n_logits")
        condition = self.told(told) if self.told is not None and told is not None else None
        logits: Tensor = self.trunk(self.stem(z_sent), condition)
        return torch.sigmoid(logits.float() + self.base)


def _listener(n_classes: int | None, n_logits: int | None, width: int) -> nn.Module | None:
    """What is told as one number a channel: all 0 at first (drawn at random it is noise, and a fit ends worse)."""
    if n_classes is not None:
        label = _Label(n_classes, width)
        nn.init.zeros_(label.places.weight)
        return label
    if n_logits is None:
        return None
    last = nn.Linear(width, width)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.BatchNorm1d(n_logits, affine=False), nn.Linear(n_logits, width), nn.SiLU(), last)


class _Label(nn.Module):
    def __init__(self, n_classes: int, width: int) -> None:
        super().__init__()
        self.places = nn.Embedding(n_classes + 1, width)  # the first is for −1

    def forward(self, y: Labels) -> Tensor:
        return self.places(y + 1)  # type: ignore[no-any-return]
