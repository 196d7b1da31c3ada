"""Where a run computes: one device, or one of the processes that torchrun started.

Lightning Fabric does the work: process groups, data-parallel wrapping, autocast. It takes seconds to import, so it is
imported when a run opens it, and not by commands that only read settings.
"""

import logging
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.optim import Optimizer

from splitveil.check import UsageError

PRECISIONS: Mapping[str, Literal["32-true", "bf16-mixed"]] = {
    "float32": "32-true",
    "bf16": "bf16-mixed",
    "float64": "32-true",  # the loop casts the networks itself: Fabric's 64-true rounds what they return to float32
}


@final
class Place:
    """A device, and the processes that share the work. Alone, nothing is ever communicated.

    Guarantees: `total`, `mean` and `highest` give every process the same answer; all of them must ask.
    """

    def __init__(self, fabric: Any) -> None:
        self._fabric = fabric
        self.device: torch.device = fabric.device
        self.rank: int = fabric.global_rank
        self.n_ranks: int = fabric.world_size

    @property
    def is_first(self) -> bool:
        """Whether this process writes what is written."""
        return self.rank == 0

    def set_up(self, module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Make a module on this device one with its copies on the others. Alone, it is left as it is."""
        if self.n_ranks == 1:
            return module, optimizer  # Fabric's wrapper would cost time in each step, and change nothing
        model, wrapped = self._fabric.setup(module, optimizer)
        return model, wrapped

    def autocast(self) -> AbstractContextManager[Any]:
        """The block in which a forward pass runs in the recipe's precision."""
        context: AbstractContextManager[Any] = self._fabric.autocast()
        return context

    def seed_layers(self, seed: int) -> None:
        """Seed the generators that layers draw from, such as nn.Dropout: those of the CPU and of this device."""
        torch.default_generator.manual_seed(seed)  # torch.manual_seed also visits every backend, and is slow
        if self.device.type == "cuda":
            torch.cuda.default_generators[self.device.index or 0].manual_seed(seed)

    def backward(self, loss: Tensor) -> None:
        """Leave gradients in the parameters, averaged over the processes."""
        self._fabric.backward(loss)

    def total(self, values: Tensor) -> Tensor:
        """The sum over processes."""
        return values if self.n_ranks == 1 else _all_reduced(values.clone(), dist.ReduceOp.SUM)

    def mean(self, values: Tensor) -> Tensor:
        """The mean over processes."""
        return values if self.n_ranks == 1 else self.total(values) / self.n_ranks

    def highest(self, number: int) -> int:
        """The largest of all processes' numbers. Waits for the device where there are several."""
        if self.n_ranks == 1:
            return number
        return int(_all_reduced(torch.tensor(number, device=self.device), dist.ReduceOp.MAX))


def find_device(name: str) -> torch.device:
    """The device called `name`; "auto" takes an accelerator when there is one, and each rank of torchrun its own.

    >>> find_device("cpu")
    device(type='cpu')
    """
    if name in ("auto", "cuda") and torch.cuda.is_available():
        return torch.device("cuda") if n_ranks() == 1 else _of_rank()
    if name == "auto":
        return torch.device("cpu")
    here = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or str(device) not in here:
        raise UsageError(f"there is no device {name!r} on this machine; it has: {', '.join(here)}")
    return device


def this_rank() -> int:
    """This process's number among those torchrun started; 0 without torchrun."""
    return int(os.environ.get("RANK", "0"))


def n_ranks() -> int:
    """How many processes torchrun started on all machines together; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def open_place(name: str, precision: str) -> Place:
    """The place called `name`; under torchrun, that of this rank."""
    device, world = find_device(name), n_ranks()
    local = int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))
    fabric = _fabric()(
        accelerator=device.type,
        devices=local if world > 1 else ([device.index or 0] if device.type == "cuda" else 1),
        num_nodes=world // local,
        strategy="ddp" if world > 1 else "auto",
        precision=PRECISIONS[precision],
    )
    fabric.launch()
    return Place(fabric)


def _of_rank() -> torch.device:
    local, here = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= here:
        raise UsageError(f"torchrun started more processes than this machine has GPUs; use --nproc-per-node {here}")
    return torch.device("cuda", local)


def _all_reduced(values: Tensor, how: dist.ReduceOp.RedOpType) -> Tensor:
    dist.all_reduce(values, op=how)
    return values


def _fabric() -> Any:
    try:
        from lightning_fabric import Fabric
    except ImportError:  # the same code inside the larger `lightning` distribution
        from lightning.fabric import Fabric
    logging.getLogger(Fabric.__module__.rpartition(".")[0]).setLevel(logging.WARNING)  # what it says is not for users
    return Fabric
