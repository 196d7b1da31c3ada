"""Additive noise.

    Gaussian:  z_sent = z + σ n       n standard normal                     σ = std
    Laplace:   z_sent = z + b n       n = log(1 − u₂) − log(1 − u₁)         b = scale, standard deviation b√2

The difference of two exponentials is a Laplace variable and, unlike the inverse distribution function, stays finite for
every u in [0, 1).
"""

import math
from collections.abc import Sequence
from typing import final

import torch

from splitveil.check import positive
from splitveil.dp import events
from splitveil.mechanisms.base import Mechanism, Noise
from splitveil.mechanisms.guarantee import Guarantee
from splitveil.randomness import NoiseSource
from splitveil.types import Features, Sent

NONE_WANTED = "use identity to send features as they are"


@final
class Gaussian(Mechanism):
    """Adds independent normal noise. Private only behind a Clip: μ = 2 · radius / std."""

    name = "gaussian"

    def __init__(self, *, std: float) -> None:
        super().__init__()
        self.std = positive("gaussian std", std, hint=NONE_WANTED)

    def draw(self, shape: Sequence[int], source: NoiseSource, *, device: torch.device) -> Noise:
        return (source.normal(shape, device=device),)

    def send(self, z: Features, noise: Noise) -> Sent:
        return Sent(z + self.std * noise[0].to(z.dtype))

    def follow(self, known: Guarantee) -> Guarantee:
        bounded = known.l2 < math.inf
        return known.released(events.Gaussian(2 * known.l2, self.std) if bounded else events.NonPrivate())

    def settings(self) -> dict[str, object]:
        return {"std": self.std}

    @property
    def n_draws(self) -> int:
        return 1

    @property
    def noise_std(self) -> float:
        return self.std


@final
class Laplace(Mechanism):
    """Adds independent Laplace noise. Private only behind a Clip with norm 1: ε = 2 · radius / scale."""

    name = "laplace"

    def __init__(self, *, scale: float) -> None:
        super().__init__()
        self.scale = positive("laplace scale", scale, hint=NONE_WANTED)

    def draw(self, shape: Sequence[int], source: NoiseSource, *, device: torch.device) -> Noise:
        first, second = (torch.log1p(-source.uniform(shape, device=device)) for _ in range(2))
        return (second - first,)

    def send(self, z: Features, noise: Noise) -> Sent:
        return Sent(z + self.scale * noise[0].to(z.dtype))

    def follow(self, known: Guarantee) -> Guarantee:
        bounded = known.l1 < math.inf
        return known.released(events.Laplace(2 * known.l1, self.scale) if bounded else events.NonPrivate())

    def settings(self) -> dict[str, object]:
        return {"scale": self.scale}

    @property
    def n_draws(self) -> int:
        return 1

    @property
    def noise_std(self) -> float:
        return math.sqrt(2) * self.scale
