"""Mechanisms one after another.

z_sent = m_n(… m_2(m_1(z)))          noise = the parts' noise, in order, in one flat tuple
"""

import math
from collections.abc import Iterator, Sequence
from typing import final

import torch
from torch import nn

from splitveil.check import UsageError
from splitveil.mechanisms.base import Mechanism, Noise
from splitveil.mechanisms.guarantee import Guarantee
from splitveil.randomness import NoiseSource
from splitveil.types import Features, Sent


@final
class Chain(Mechanism):
    """Applies its parts in order, and is private where their order makes it so: a clip, later a noise.

    `noise_std` counts all noise added along the way, as if nothing after it changed its size.
    """

    name = "chain"

    def __init__(self, parts: Sequence[Mechanism]) -> None:
        super().__init__()
        if not parts:
            raise UsageError("a chain needs at least one mechanism, got none; use identity to change nothing")
        self.parts = nn.ModuleList(parts)

    def __iter__(self) -> Iterator[Mechanism]:
        return iter(self.parts)  # type: ignore[arg-type]  # ModuleList forgets what it holds

    def draw(self, shape: Sequence[int], source: NoiseSource, *, device: torch.device) -> Noise:
        return tuple(drawn for part in self for drawn in part.draw(shape, source, device=device))

    def send(self, z: Features, noise: Noise) -> Sent:
        assert len(noise) == self.n_draws, f"chain draws {self.n_draws} tensors, got {len(noise)}"
        sent = z
        for part in self:
            sent = part.send(sent, noise[: part.n_draws])
            noise = noise[part.n_draws :]
        return Sent(sent)

    def follow(self, known: Guarantee) -> Guarantee:
        for part in self:
            known = part.follow(known)
        return known

    def settings(self) -> dict[str, object]:
        return {"parts": [{"name": part.name, **part.settings()} for part in self]}

    @property
    def n_draws(self) -> int:
        return sum(part.n_draws for part in self)

    @property
    def noise_std(self) -> float:
        return math.hypot(*(part.noise_std for part in self))

    def extra_repr(self) -> str:
        return ""  # the parts print themselves
