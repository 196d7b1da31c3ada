"""An architecture family: the client's layers and its mechanism, with none of its weights.

    family = Family(client)        family.fresh(seed) → a client of the same layers, its weights drawn from `seed`

The weights are drawn anew before the family is kept, so nothing of the client's own can be reached through it. What
stays are the constants of preprocessing and the mechanism's settings, which a family is known by.
"""

import copy
from typing import final

import torch
from torch import Tensor, nn

from splitveil.randomness import derive
from splitveil.split import Client, Normalize

SMALL = 0.02  # std of numbers that no layer knows how to draw, and that stand alone (tokens, positions)


@final
class Family:
    """Clients of one architecture."""

    def __init__(self, client: Client) -> None:
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
            own = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
            if not own:
                continue
            if callable(reset := getattr(part, "reset_parameters", None)):
                where = own[0].device
                part.to("cpu")  # a seed gives the same weights on every device
                reset()
                part.to(where)
            else:
                _draw([number for number in own if number.is_floating_point()])


def _draw(numbers: list[Tensor]) -> None:
    for number in numbers:
        std = (number[0].numel()) ** -0.5 if number.ndim > 1 and number.shape[0] > 1 else SMALL
        number.copy_(std * torch.randn(number.shape))
