"""A client as the channel that bounds speak of.

    x ──encoder──▶ z ──front──▶ c(x) ──▶ c(x) + σn ──anything──▶ z_sent            n standard normal

Front is what the mechanism does before its first Gaussian noise, and must not be random. What comes after is
post-processing: it tells nobody more. T releases of one input tell as much as one with σ²/T.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from math import hypot, sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.check import UsageError
from splitveil.data import Part
from splitveil.mechanisms import Chain, Clip, Gaussian, Identity, Mechanism
from splitveil.split import Client, evaluating
from splitveil.types import Images

CPU_CHUNK, DEVICE_CHUNK = 250, 1000  # images encoded at once: near the cache; in few large launches


@dataclass(frozen=True)
class Channel:
    """c and σ."""

    client: Client
    front: tuple[Mechanism, ...]
    std: float

    def features(self, x: Images) -> Float[Tensor, "batch dim"]:
        """c(x), as deployed: evaluation mode, its own precision. Gradients pass to x."""
        return self.unrounded(x).float()

    def unrounded(self, x: Images) -> Float[Tensor, "batch dim"]:
        """c(x) in whatever precision the encoder answers with."""
        with evaluating(self.client), torch.autocast(x.device.type, enabled=False):
            z: Tensor = self.client.encode(x)
            for part in self.front:
                z = part.send(z, ())
        return z.flatten(1)

    @torch.no_grad()
    def all_features(self, part: Part) -> Float[Tensor, "image dim"]:
        """c of every image of a part."""
        chunk = CPU_CHUNK if part.device.type == "cpu" else DEVICE_CHUNK
        rows = (slice(start, start + chunk) for start in range(0, len(part), chunk))
        return torch.cat([self.features(part.images(each)) for each in rows])

    def std_after(self, releases: int) -> float:
        """The σ of one release that tells as much as `releases` of them."""
        return self.std / sqrt(releases)


def channel_of(client: Client) -> Channel:
    """The channel of a client whose mechanism adds Gaussian noise."""
    reason = obstacle(client.mechanism)
    if reason is not None:
        raise UsageError(reason)
    parts = tuple(_flat(client.mechanism))
    first = next(i for i, part in enumerate(parts) if isinstance(part, Gaussian))
    noises = takewhile(lambda part: isinstance(part, Gaussian | Identity), parts[first:])
    return Channel(client, parts[:first], hypot(*(part.noise_std for part in noises)))


def obstacle(mechanism: Mechanism) -> str | None:
    """Why a mechanism is not such a channel; None if it is one."""
    front = list(takewhile(lambda part: not isinstance(part, Gaussian), _flat(mechanism)))
    if len(front) == len(list(_flat(mechanism))):
        return f"these bounds need gaussian noise, the mechanism is {_names(front)}; add gaussian to it"
    random = [part for part in front if part.is_random]
    if random:
        return f"these bounds need nothing random before the gaussian noise, got {_names(random)}; put it behind"
    return None


def roughness(mechanism: Mechanism) -> str | None:
    """Why c may jump, so that its Jacobian does not say what it tells; None if it is as smooth as the encoder."""
    front = takewhile(lambda part: not isinstance(part, Gaussian), _flat(mechanism))
    jumps = [part for part in front if not isinstance(part, Identity | Clip)]
    if jumps:
        return f"van Trees needs features without jumps, got {_names(jumps)} before the noise; put it behind"
    return None


def _flat(mechanism: Mechanism) -> Iterator[Mechanism]:
    if isinstance(mechanism, Chain):
        for part in mechanism:
            yield from _flat(part)
    else:
        yield mechanism


def _names(parts: list[Mechanism]) -> str:
    return ", ".join(part.name for part in parts)
