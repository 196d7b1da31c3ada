"""Something that answers images with z_sent: all that a black box is, and all that an attack queries.

    release(x, T)[t, i] = mechanism(encoder(x_i)) with the t-th fresh noise

An encoder may draw noise of its own (a dropout that eval mode does not end, z + randn_like(z)): it is found out by
encoding twice, and then every release is encoded anew, under torch's generators forked and seeded by `source`.

A client is asked in eval mode and in its own precision, whatever mode and autocast the attacker trains its networks in:
what is attacked is what is deployed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from splitveil.check import UsageError
from splitveil.mechanisms import Identity
from splitveil.randomness import NoiseSource, SeededSource
from splitveil.split import Client, evaluating, is_noisy, seeded
from splitveil.types import Features, Images

AT_ONCE = 2**26  # numbers that are sent together (256 MB); of more, release by release

Releases = Float[Tensor, "release batch *feature"]


class Oracle(ABC):
    """Answers images with what would cross the wire. It never gives clean features away."""

    @abstractmethod
    def release(self, x: Images, *, source: NoiseSource, releases: int = 1) -> Releases:
        """`releases` answers for each image, each with fresh noise."""

    @abstractmethod
    def is_random(self, x: Images) -> bool:
        """Whether two releases of one input differ; `x` are images to try it on."""

    @property
    def client(self) -> Client | None:
        """The client itself, where the attacker may hold it."""
        return None


@final
class ClientOracle(Oracle):
    """A client of ours."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._is_noisy: bool | None = None  # None: not tried yet

    @property
    def client(self) -> Client:
        return self._client

    @torch.no_grad()
    def release(self, x: Images, *, source: NoiseSource, releases: int = 1) -> Releases:
        if self._is_noisy is None:
            self._is_noisy = is_noisy(self._client, x)
        with evaluating(self._client), torch.autocast(x.device.type, enabled=False):
            if self._is_noisy:
                with seeded(_seed_from(source), x.device):
                    return self._send([self._client.encode(x) for _ in range(releases)], source)
            return self._send([self._client.encode(x)] * releases, source)

    def _send(self, features: list[Features], source: NoiseSource) -> Releases:
        """All noise is drawn at once, and sent in pieces: little is held beside what is sent."""
        mechanism, n, shape = self._client.mechanism, len(features[0]), features[0].shape[1:]
        noise = mechanism.draw((len(features) * n, *shape), source, device=features[0].device)
        size = max(1, AT_ONCE // features[0].numel())
        sent = torch.empty(0)
        for t in range(0, len(features), size):
            several = torch.cat(features[t : t + size])
            piece = mechanism.send(several, tuple(part[t * n : t * n + len(several)] for part in noise))
            sent = sent if t else piece.new_empty(len(features), n, *piece.shape[1:])
            sent[t : t + size] = piece.reshape(-1, n, *piece.shape[1:])
        return sent

    def is_random(self, x: Images) -> bool:
        self._is_noisy = self._is_noisy or is_noisy(self._client, x)
        return self._is_noisy or self._client.mechanism.is_random


@final
class CallableOracle(Oracle):
    """Any function from images to features. Its noise, if it has any, is its own: it ignores our seeds."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    @torch.no_grad()
    def release(self, x: Images, *, source: NoiseSource, releases: int = 1) -> Releases:
        with torch.autocast(x.device.type, enabled=False):
            return torch.stack([self._ask(x) for _ in range(releases)])

    def _ask(self, x: Images) -> Tensor:
        answer = self._function(x)
        sent = torch.from_numpy(answer) if isinstance(answer, np.ndarray) else answer
        if not isinstance(sent, Tensor) or sent.ndim < 2 or len(sent) != len(x):
            got = f"shape {tuple(sent.shape)}" if isinstance(sent, Tensor) else type(sent).__name__
            raise UsageError(f"the client must answer {len(x)} images with a tensor of {len(x)} rows, got {got}")
        return sent.detach().to(x.device, torch.float32)

    def is_random(self, x: Images) -> bool:
        return not torch.equal(self._ask(x), self._ask(x))


@final
class SealedOracle(Oracle):
    """The answers of another oracle, and no way to its client."""

    def __init__(self, oracle: Oracle) -> None:
        self._release, self._is_random = oracle.release, oracle.is_random

    def release(self, x: Images, *, source: NoiseSource, releases: int = 1) -> Releases:
        return self._release(x, source=source, releases=releases)

    def is_random(self, x: Images) -> bool:
        return self._is_random(x)


def oracle_of(client: object) -> Oracle:
    """An oracle for a client, for an encoder without a mechanism, or for any function from images to features."""
    if isinstance(client, Client):
        return ClientOracle(client)
    if isinstance(client, nn.Module):
        return ClientOracle(Client(client, Identity()))
    if not callable(client):
        raise UsageError(f"client must be a Client, a module or a function, got {type(client).__name__}")
    return CallableOracle(client)


def _seed_from(source: NoiseSource) -> int:
    high, low = (source.uniform((1, 2), device=torch.device("cpu"))[0].double() * 2**24).tolist()
    return int(high) * 2**24 + int(low)


def feature_shape(oracle: Oracle, x: Images) -> tuple[int, ...]:
    """Shape of what is sent for one image."""
    return tuple(oracle.release(x[:1], source=SeededSource(0, "shape")).shape[2:])
