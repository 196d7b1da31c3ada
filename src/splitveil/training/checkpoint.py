"""A run's whole state in one file, written so that a power cut leaves either the old or the new one.

    checkpoint.safetensors     tensors: model, best model, optimizer, regularizers     metadata["state"]: JSON

One file holds tensors and counters together, so they can never disagree. It is written in `.writing/` beside its place,
flushed to disk, then renamed; the file it replaces is kept as `checkpoint.previous.safetensors`. No pickle anywhere.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from splitveil.check import RunError
from splitveil.writing import flush, reason

NAME = "checkpoint.safetensors"
PREVIOUS = "checkpoint.previous.safetensors"
SCRATCH = ".writing"  # files that are not complete; whatever a kill leaves there is worth nothing


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name (`model/…`, `optimizer/…`, …) and the counters that go with them."""

    tensors: Mapping[str, Tensor]
    state: Mapping[str, Any]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors under `prefix/`, without the prefix."""
        return {k.removeprefix(f"{prefix}/"): v for k, v in self.tensors.items() if k.startswith(f"{prefix}/")}


@dataclass(frozen=True)
class Found:
    """The newest complete checkpoint of a run, and the names of newer ones that are damaged."""

    checkpoint: Checkpoint | None
    damaged: tuple[str, ...] = ()


def save(directory: Path, checkpoint: Checkpoint) -> None:
    """Write atomically, keeping the one before.

    Guarantees: whenever this is cut short, `load` finds the last complete checkpoint.
    """
    target = directory / NAME
    with _replacing(target, keep_as=directory / PREVIOUS) as fresh:
        save_file(_on_cpu(checkpoint.tensors), fresh, {"state": json.dumps(checkpoint.state)})


def load(directory: Path) -> Found:
    """The newest complete checkpoint; none if the run never reached one."""
    damaged: list[str] = []
    for path in (directory / NAME, directory / PREVIOUS):
        if path.exists():
            try:
                return Found(_read(path), tuple(damaged))
            except (SafetensorError, OSError, KeyError, TypeError, json.JSONDecodeError):
                damaged.append(path.name)  # truncated or corrupt: the one before it is still good
    if damaged:
        raise RunError(
            f"{directory}: {' and '.join(damaged)} cannot be read; put back a copy, or remove them to start over"
        )
    return Found(None)


def sweep_up(directory: Path) -> None:
    """Remove what writes that were cut short left behind, and make sure that the next ones can succeed."""
    try:
        for scratch in (directory / SCRATCH, *directory.glob(f"*/{SCRATCH}")):
            if scratch.exists():
                shutil.rmtree(scratch)
        (directory / SCRATCH).mkdir()
        (directory / SCRATCH).rmdir()
    except OSError as error:
        raise RunError(f"cannot write in {directory}: {error.strerror or error}; the run is as it was") from None


def make_directory(path: Path) -> None:
    """Make a directory, if it is not there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make {path}: {error.strerror or error}") from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Replace a safetensors file at once: readers see the old or the new one, never a half."""
    with _replacing(path) as fresh:
        save_file(_on_cpu(tensors), fresh)


def write_text(path: Path, text: str) -> None:
    """Replace a small file at once: readers see the old or the new one, never a half."""
    with _replacing(path) as fresh:
        fresh.write_text(text, encoding="utf-8")


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


@contextmanager
def _replacing(path: Path, *, keep_as: Path | None = None) -> Iterator[Path]:
    """Write to the path this gives; leaving the block flushes it to disk and puts it in the place of `path`."""
    scratch = path.parent / SCRATCH
    fresh = scratch / path.name
    try:
        scratch.mkdir(exist_ok=True)
        yield fresh
        fresh.chmod(path.parent.stat().st_mode & 0o666)  # readable as the run is; safetensors makes its files private
        flush(fresh)
        if keep_as is not None and path.exists():
            os.replace(path, keep_as)
        os.replace(fresh, path)
        flush(path.parent)
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot write {path}: {reason(error)}; what was there before is kept") from None
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
            scratch.rmdir()


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}


def _read(path: Path) -> Checkpoint:
    with safe_open(path, framework="pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
        return Checkpoint(tensors, json.loads(file.metadata()["state"]))
