"""Send fewer coordinates: the rest become zero.

    Dropout:  z_sent = z · 1[u ≥ rate]                       u uniform, drawn anew for every release, deployed ones too
    TopK:     z_sent = z · 1[|z| among the k largest]        per sample, over all feature axes

Neither raises a norm, so a clip before them still bounds what they send.
"""

import math
from collections.abc import Sequence
from typing import final

import torch

from splitveil.check import UsageError, fraction
from splitveil.mechanisms.base import Mechanism, Noise
from splitveil.mechanisms.guarantee import Guarantee
from splitveil.randomness import NoiseSource
from splitveil.types import Features, Sent


@final
class Dropout(Mechanism):
    """Zeroes each coordinate with probability `rate`, in training, attack and deployment alike.

    Kept coordinates are not rescaled by 1 / (1 − rate): the head is trained on exactly these releases, so there is no
    other mode to match, and the features keep their range (a quantizer may follow) and their norm bound.
    """

    name = "dropout"

    def __init__(self, *, rate: float) -> None:
        super().__init__()
        self.rate = fraction("dropout rate", rate)

    def draw(self, shape: Sequence[int], source: NoiseSource, *, device: torch.device) -> Noise:
        return (source.uniform(shape, device=device),)

    def send(self, z: Features, noise: Noise) -> Sent:
        return Sent(torch.where(noise[0] >= self.rate, z, torch.zeros_like(z)))

    def follow(self, known: Guarantee) -> Guarantee:
        return known

    def settings(self) -> dict[str, object]:
        return {"rate": self.rate}

    @property
    def n_draws(self) -> int:
        return 1


@final
class TopK(Mechanism):
    """Keeps the largest coordinates of each sample by absolute value.

    `keep` below 1 is a fraction of the coordinates (rounded up), a whole number from 1 on is a count.
    """

    name = "top-k"

    def __init__(self, *, keep: int | float) -> None:
        super().__init__()
        if not (0 < keep < 1 or (keep >= 1 and math.isfinite(keep) and keep == int(keep))):
            raise UsageError(f"top-k keep must be a fraction in (0, 1) or a whole number ≥ 1, got {keep}")
        self.keep = keep if keep < 1 else int(keep)

    def send(self, z: Features, noise: Noise) -> Sent:
        flat = z.flatten(1)
        largest = flat.detach().abs().topk(self.count(flat.shape[1]), dim=1, sorted=False).indices
        kept = torch.zeros_like(flat, dtype=torch.bool).scatter(1, largest, True)
        return Sent(torch.where(kept, flat, torch.zeros_like(flat)).reshape(z.shape))

    def count(self, dim: int) -> int:
        """How many of `dim` coordinates are kept."""
        return min(dim, self.keep if isinstance(self.keep, int) else math.ceil(self.keep * dim))

    def follow(self, known: Guarantee) -> Guarantee:
        return known

    def settings(self) -> dict[str, object]:
        return {"keep": self.keep}
