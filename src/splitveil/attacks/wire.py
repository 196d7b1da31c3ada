"""A mechanism taken apart as a likelihood needs it: what can be read off what arrived, and what is left to chance.

    z_sent = kept ⊙ m(z)      kept: what the dropouts and top-ks at the end of a chain let through;  m: all before them

Nothing is added after those, so what they kept is seen: all that is not exactly 0. There m(z) arrived as it was. Of the
rest top-k says that it was small; dropout says nothing, so it does not pull.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool
from torch import Tensor

from splitveil.mechanisms import Chain, Clip, Dropout, Gaussian, Identity, Laplace, Mechanism, Noise, TopK
from splitveil.randomness import NoiseSource
from splitveil.types import Features

Kept = Bool[Tensor, "batch *feature"]


@dataclass(frozen=True)
class Wire:
    """What a mechanism does to features, part by part."""

    before: Mechanism  # m
    removals: tuple[Mechanism, ...] = ()

    @cached_property
    def is_scattered(self) -> bool:
        """Whether anything but additive noise is random in m."""
        return is_scattered(self.before)

    @cached_property
    def is_followed(self) -> bool:
        """Whether anything in m changes additive noise after it was added: its size is then not the mechanism's."""
        is_noise = [isinstance(part, Gaussian | Laplace) for part in parts_of(self.before)]
        return True in is_noise and not all(is_noise[is_noise.index(True) :])

    @cached_property
    def shows_zeros(self) -> bool:
        """Whether what m drops arrives as exactly 0, and nothing else does."""
        scattered = [is_scattered(part) for part in parts_of(self.before)]
        last = len(scattered) - scattered[::-1].index(True) if True in scattered else 0
        return last > 0 and all(isinstance(part, Clip) for part in parts_of(self.before)[last:])

    def draw(self, shape: tuple[int, ...], source: NoiseSource, *, device: torch.device) -> Noise:
        """What m draws; additive noise is zero where nothing follows it."""
        if self.is_followed:
            return self.before.draw(shape, source, device=device)
        return draw_scatter(self.before, shape, source, device=device)

    def send(self, z: Features, noise: Noise) -> Features:
        """m(z); where something follows additive noise, the mean of m with it and with its mirror image."""
        noise = tuple(part.expand_as(z) for part in noise)
        sent = self.before.send(z, noise)
        if not self.is_followed:
            return sent
        mirrored = tuple(-each if added else each for each, added in zip(noise, self._added, strict=True))
        return (sent + self.before.send(z, mirrored)) / 2

    def renew(self, noise: Noise, fresh: Noise) -> Noise:
        """The same draws, but for the additive noise."""
        return tuple(b if added else a for a, b, added in zip(noise, fresh, self._added, strict=True))

    @property
    def _added(self) -> list[bool]:
        """Of each tensor that m draws, whether it is added."""
        parts = parts_of(self.before)
        return [isinstance(part, Gaussian | Laplace) for part in parts for _ in range(part.n_draws)]

    def wanted(self, sent: Features) -> Kept | None:
        """What of m(z) should arrive: all that top-k would keep of it. None where dropout may have taken it."""
        if any(part.is_random for part in self.removals):
            return None
        for part in self.removals:
            sent = part.send(sent, ())
        return sent != 0

    def compared(self, z_sent: Features, wanted: Kept | None) -> Kept | None:
        """Where m(z) is compared with what was sent, elsewhere 0 is; None: everywhere."""
        if not self.removals:
            return None
        arrived = z_sent != 0
        return arrived if wanted is None else arrived | wanted


def wire_of(mechanism: Mechanism) -> Wire:
    """A mechanism taken apart.

    >>> wire_of(Chain([Gaussian(std=0.1), Dropout(rate=0.5)]))
    Wire(before=Gaussian(std=0.1), removals=(Dropout(rate=0.5),))
    """
    parts = parts_of(mechanism)
    n = len(parts)
    while n and isinstance(parts[n - 1], Dropout | TopK):
        n -= 1
    if n == len(parts):
        return Wire(mechanism)
    before = parts[0] if n == 1 else Chain(parts[:n]) if n else Identity()
    return Wire(before, tuple(parts[n:]))


def parts_of(mechanism: Mechanism) -> list[Mechanism]:
    """A chain's parts, and theirs; those that change nothing are left out."""
    if isinstance(mechanism, Chain):
        return [part for each in mechanism for part in parts_of(each)]
    return [] if isinstance(mechanism, Identity) else [mechanism]


def is_scattered(mechanism: Mechanism) -> bool:
    """Whether anything but additive noise is random in it.

    >>> is_scattered(Gaussian(std=0.1))
    False
    """
    return any(part.is_random and not isinstance(part, Gaussian | Laplace) for part in parts_of(mechanism))


def draw_scatter(mechanism: Mechanism, shape: tuple[int, ...], source: NoiseSource, *, device: torch.device) -> Noise:
    """The mechanism's noise with every additive part at zero."""
    if isinstance(mechanism, Chain):
        return tuple(part for each in mechanism for part in draw_scatter(each, shape, source, device=device))
    drawn = mechanism.draw(shape, source, device=device)
    return tuple(map(torch.zeros_like, drawn)) if isinstance(mechanism, Gaussian | Laplace) else drawn
