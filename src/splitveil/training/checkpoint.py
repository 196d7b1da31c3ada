"""A run's whole state in one file, written so that a power cut leaves either the old or the new one.

    checkpoint.safetensors     tensors: model, best model, optimizer, regularizers     metadata["state"]: JSON

One file holds tensors and counters together, so they can never disagree. It is written beside its final name, flushed
to disk, then renamed; the file it replaces is kept as `checkpoint.previous.safetensors`. No pickle anywhere.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from splitveil.check import RunError

NAME = "checkpoint.safetensors"
PREVIOUS = "checkpoint.previous.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name (`model/…`, `optimizer/…`, …) and the counters that go with them."""

    tensors: Mapping[str, Tensor]
    state: Mapping[str, Any]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors under `prefix/`, without the prefix."""
        return {k.removeprefix(f"{prefix}/"): v for k, v in self.tensors.items() if k.startswith(f"{prefix}/")}


def save(directory: Path, checkpoint: Checkpoint) -> None:
    """Write atomically, keeping the one before.

    Guarantees: whenever this is cut short, `load` finds the last complete checkpoint.
    """
    target = directory / NAME
    write_tensors(directory / f"{NAME}.new", checkpoint.tensors, {"state": json.dumps(checkpoint.state)})
    try:
        if target.exists():
            os.replace(target, directory / PREVIOUS)
        os.replace(directory / f"{NAME}.new", target)
    except OSError as error:
        raise RunError(f"cannot write the checkpoint in {directory}: {error.strerror or error}") from error
    _flush_directory(directory)


def load(directory: Path) -> Checkpoint | None:
    """The newest complete checkpoint, or None if the run never reached one."""
    found = [directory / name for name in (NAME, PREVIOUS) if (directory / name).exists()]
    for path in found:
        try:
            return _read(path)
        except (SafetensorError, OSError, KeyError, json.JSONDecodeError):
            continue  # truncated or corrupt: the one before it is still good
    if found:
        raise RunError(f"no checkpoint in {directory} can be read ({', '.join(p.name for p in found)} are damaged)")
    return None


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write one safetensors file and make sure it has reached the disk."""
    flat = {k: v.detach().to("cpu", copy=True).contiguous() for k, v in tensors.items()}
    try:
        save_file(flat, path, dict(metadata or {}))
        with path.open("rb") as file:
            os.fsync(file.fileno())
    except (OSError, SafetensorError) as error:
        path.unlink(missing_ok=True)
        raise RunError(f"cannot write {path}: {error}; free some space or choose another --out") from error


def write_text(path: Path, text: str) -> None:
    """Replace a small file at once: readers see the old or the new one, never a half."""
    fresh = path.with_name(f"{path.name}.new")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Every tensor an optimizer remembers, as `<parameter number>/<name>`."""
    kept = optimizer.state_dict()["state"]
    return {
        f"{i}/{name}": torch.as_tensor(value)
        for i, slot in kept.items()
        for name, value in slot.items()
        if value is not None
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give an optimizer back what `optimizer_tensors` took from it."""
    slots: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split("/", 1)
        slots.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": slots, "param_groups": optimizer.state_dict()["param_groups"]})


def _read(path: Path) -> Checkpoint:
    with safe_open(path, framework="pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
        return Checkpoint(tensors, json.loads(file.metadata()["state"]))


def _flush_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
