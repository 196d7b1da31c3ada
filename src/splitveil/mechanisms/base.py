"""What the client does to its features before they leave it.

    noise = draw(shape, source)          random, and the only random part
    z_sent = send(z, noise)              pure: exported as the graph (x, noise) → z_sent

`send` is not called `apply` because `nn.Module.apply` already means something else and walks into children.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from splitveil.dp.events import Event
from splitveil.mechanisms.guarantee import Guarantee
from splitveil.randomness import NoiseSource
from splitveil.types import Features, Sent

Noise = tuple[Tensor, ...]  # one tensor a random draw, flat over a chain


class Mechanism(nn.Module, ABC):
    """What is done to z before it leaves: z → z_sent. Holds settings, never learned parameters.

    Guarantees expected of every implementation: `send` is a pure function of (z, noise), row by row; it keeps the shape
    and the gradient to z wherever that exists; `settings()` rebuilds an equal mechanism through its constructor.
    """

    name: ClassVar[str]  # in settings files and on the command line

    @abstractmethod
    def send(self, z: Features, noise: Noise) -> Sent:
        """z_sent, given the noise."""

    @abstractmethod
    def settings(self) -> dict[str, object]:
        """Constructor arguments as plain JSON values."""

    def draw(self, shape: Sequence[int], source: NoiseSource, *, device: torch.device) -> Noise:
        """The noise for features of this shape (batch first): `n_draws` tensors."""
        return ()

    def follow(self, known: Guarantee) -> Guarantee:
        """What is known after this mechanism, given what was known before it.

        The default is safe for any mechanism: a private release stays private, and no bound survives.
        """
        return Guarantee(event=known.event)

    def event(self) -> Event:
        """What one release of one input is, as an event. `NonPrivate()` unless clipping bounds the sensitivity."""
        return self.follow(Guarantee()).event

    @property
    def n_draws(self) -> int:
        """How many tensors `draw` returns."""
        return 0

    @property
    def noise_std(self) -> float:
        """Standard deviation of the additive noise in one coordinate of z_sent; 0 without any."""
        return 0.0

    @property
    def is_random(self) -> bool:
        """Whether two releases of one input differ."""
        return self.n_draws > 0

    def forward(self, z: Features, *, source: NoiseSource) -> Sent:
        """Draw and send."""
        return self.send(z, self.draw(z.shape, source, device=z.device))

    def extra_repr(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.settings().items())
