"""Where a run computes: one device, or the processes that torchrun started."""

import os
from typing import Literal

import torch

from splitveil.check import UsageError

try:
    from lightning_fabric import Fabric
except ImportError:  # the same code inside the larger `lightning` distribution
    from lightning.fabric import Fabric

__all__ = ["Fabric", "find_device", "open_fabric"]

PRECISIONS: dict[str, Literal["32-true", "bf16-mixed"]] = {
    "float32": "32-true",
    "bf16": "bf16-mixed",
    "float64": "32-true",  # the loop casts the networks itself: Fabric's 64-true rounds what they return to float32
}


def find_device(name: str) -> torch.device:
    """The device called `name`; "auto" takes an accelerator when there is one.

    >>> find_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    here = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    known = device is not None and (str(device) in here or (str(device) == "cuda" and len(here) > 1))
    if device is None or not known:
        raise UsageError(f"there is no device {name!r} on this machine; it has: {', '.join(here)}")
    return device


def open_fabric(name: str, precision: str) -> Fabric:
    """A Fabric on that device; under torchrun, one of its ranks."""
    device = find_device(name)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))
    fabric = Fabric(
        accelerator=device.type,
        devices=local if world > 1 else ([device.index or 0] if device.type == "cuda" else 1),
        num_nodes=world // local,
        strategy="ddp" if world > 1 else "auto",
        precision=PRECISIONS[precision],
    )
    fabric.launch()
    return fabric
