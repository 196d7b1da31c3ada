"""Several processes, one penalty: every rank sees the members of all ranks.

    z_all = concatenation over ranks of z_r          each rank computes the whole penalty and ∂penalty/∂z_all

A rank keeps the gradient of its own rows, times the number of ranks, because data-parallel training averages gradients
over ranks: the encoder then moves as one process with the whole batch would. No communication in the backward pass.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist


@dataclass(frozen=True)
class World:
    """This process among the others."""

    rank: int
    size: int


def world() -> World:
    """Rank and size; (0, 1) without torch.distributed."""
    if dist.is_available() and dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size())
    return World(0, 1)


def is_alone() -> bool:
    """Whether there is no other process."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1


def gather(mine: Tensor, here: World) -> Tensor:
    """The rows of all ranks, in rank order; detached. Every rank must hold equally many."""
    if here.size == 1:
        return mine.detach()
    parts = [torch.empty_like(mine) for _ in range(here.size)]
    dist.all_gather(parts, mine.detach().contiguous())
    return torch.cat(parts)


def average(mine: Tensor, here: World) -> Tensor:
    """The mean over ranks."""
    if here.size > 1:
        dist.all_reduce(mine)
        mine /= here.size
    return mine


def agree(state: Tensor, here: World) -> None:
    """Everyone takes the value of rank 0."""
    if here.size > 1:
        dist.broadcast(state, src=0)
