"""Noise that an encoder draws itself, whatever its mechanism says: dropout that eval mode does not end, randn_like."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from splitveil.split.halves import Client
from splitveil.split.probe import evaluating
from splitveil.types import Features, Images

PROBES = 64  # images on which an encoder is tried
ROUNDING = 1e-5  # of the largest feature: what a GPU's sums may differ by is no noise


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
