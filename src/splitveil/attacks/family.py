"""An architecture family: the client's layers and its mechanism, with none of its weights.

    family = Family(client)        family.fresh(seed) → a client of the same layers, its weights drawn from `seed`

Every number is wiped and drawn anew before the family is kept, so nothing of the client's own can be reached through
it: by a layer's own `reset_parameters` where it has one, and by us where that leaves a number out. What stays are the
constants of preprocessing, whole numbers (indices, counters) and the mechanism's settings, which a family is known by.
A layer that hides numbers where they cannot be drawn anew is refused.
"""

import copy
import math
from collections.abc import Iterator, Mapping
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from splitveil.check import UsageError
from splitveil.randomness import derive
from splitveil.split import Client, Normalize

REGISTERED = {"_parameters", "_buffers", "_modules"}  # where a module keeps what it knows of
SMALL = 0.02  # std of numbers that no layer knows how to draw, and that stand alone (tokens, positions)


@final
class Family:
    """Clients of one architecture."""

    def __init__(self, client: Client) -> None:
        _refuse_hidden(client.encoder)
        self._template = copy.deepcopy(client)
        redraw(self._template.encoder, seed=0)

    def fresh(self, seed: int) -> Client:
        """A client that was never trained, on the CPU or wherever the family's own is."""
        client = copy.deepcopy(self._template)
        redraw(client.encoder, seed=derive(seed, "family"))
        return client


@torch.no_grad()
def redraw(module: nn.Module, *, seed: int) -> None:
    """Draw every number of a module anew: by its layers' own rule where they have one."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for part in module.modules():
            if isinstance(part, Normalize):
                continue  # the same for every network of the family
            before = _numbers(part)
            for number in before:
                number.fill_(math.nan)
            if before and callable(reset := getattr(part, "reset_parameters", None)):
                where = before[0].device
                part.to("cpu")  # a seed gives the same weights on every device
                reset()
                part.to(where)
            _draw([number for number in _numbers(part) if number.isnan().any()])


def _numbers(part: nn.Module) -> list[Tensor]:
    """What a layer itself holds, but for whole numbers."""
    own = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
    return [number for number in own if number.is_floating_point() or number.is_complex()]


def _draw(numbers: list[Tensor]) -> None:
    for number in numbers:
        std = (number[0].numel()) ** -0.5 if number.ndim > 1 and number.shape[0] > 1 else SMALL
        number.copy_(std * torch.randn(number.shape))


def _refuse_hidden(encoder: nn.Module) -> None:
    """A `UsageError` that names the first number that is no parameter, no buffer and in no layer of its own."""
    for path, part in encoder.named_modules():
        for name in sorted(vars(part).keys() - REGISTERED):
            if any(isinstance(each, Tensor | np.ndarray | nn.Module) for each in _flat(getattr(part, name))):
                raise UsageError(
                    f"an attacker who knows only the architecture may not see {f'{path}.{name}'.lstrip('.')!r} of the "
                    "encoder, which is neither parameter nor buffer nor layer; register it as one of them"
                )


def _flat(value: object) -> Iterator[object]:
    """What is in a plain container, however deep."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple | set):
        for each in value:
            yield from _flat(each)
    else:
        yield value
