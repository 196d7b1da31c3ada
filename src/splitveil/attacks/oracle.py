"""Something that answers images with z_sent: all that a black box is, and all that an attack queries.

    release(x, T)[t, i] = mechanism(encoder(x_i)) with the t-th fresh noise

An encoder may draw noise of its own (a dropout that eval mode does not end, z + randn_like(z)): it is found out by
encoding twice, and then every release is encoded anew, under torch's generators forked and seeded by `source`.

A client is asked in eval mode and in its own precision, whatever mode and autocast the attacker trains its networks in:
what is attacked is what is deployed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from splitveil.check import UsageError
from splitveil.mechanisms import Identity
from splitveil.randomness import NoiseSource, SeededSource
from splitveil.split import Client, evaluating
from splitveil.types import Features, Images

PROBES = 64  # images on which an encoder is tried for noise of its own
ROUNDING = 1e-5  # of the largest feature: what a GPU's sums may differ by is no noise

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
        """All noise is drawn at once, and sent release by release: little is held beside what is sent."""
        mechanism, z = self._client.mechanism, features[0]
        noise = mechanism.draw((len(features) * len(z), *z.shape[1:]), source, device=z.device)
        each = zip(*(torch.split(part, len(z)) for part in noise), strict=True) if noise else repeat(())
        sent = torch.empty(0)
        for t, (z, drawn) in enumerate(zip(features, each, strict=False)):
            one = mechanism.send(z, drawn)
            sent = sent if t else one.new_empty(len(features), *one.shape)
            sent[t] = one
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


@torch.no_grad()
def is_noisy(client: Client, x: Images) -> bool:
    """Whether its encoder draws noise of its own, in eval mode; tried on some of `x`."""
    one, other = (encode_seeded(client, x[:PROBES], seed) for seed in (0, 1))
    return bool((one - other).abs().max() > ROUNDING * one.abs().max())


def encode_seeded(client: Client, x: Images, seed: int) -> Features:
    """f(x) in eval mode and its own precision, all that it draws from torch drawn by `seed`."""
    with evaluating(client), torch.autocast(x.device.type, enabled=False), seeded(seed, x.device):
        return client.encode(x)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Torch's own generators seeded inside; afterwards they are as they were."""
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_gpu else []):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def _seed_from(source: NoiseSource) -> int:
    high, low = (source.uniform((1, 2), device=torch.device("cpu"))[0].double() * 2**24).tolist()
    return int(high) * 2**24 + int(low)


def feature_shape(oracle: Oracle, x: Images) -> tuple[int, ...]:
    """Shape of what is sent for one image."""
    return tuple(oracle.release(x[:1], source=SeededSource(0, "shape")).shape[2:])
