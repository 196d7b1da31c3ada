"""A run directory.

config.yaml  complete; feeding it back reproduces the run      metrics.jsonl  one line an epoch
env.json     versions, machine, commit                         result.json    what came of it
model/       encoder and head as safetensors, manifest.json    checkpoint.safetensors  to resume from
"""

import itertools
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from splitveil import __version__
from splitveil.check import UsageError
from splitveil.cli.build import build_data, build_split, load_weights
from splitveil.cli.config import Config, parse, read_yaml, to_yaml
from splitveil.data import ImageSet
from splitveil.split import Split
from splitveil.training import Trained, accuracy, n_ranks
from splitveil.training.checkpoint import SCRATCH, make_directory, write_tensors, write_text

SCHEMA_VERSION = 1  # of result.json
PROBE = ".writable"  # made and removed, to see whether a directory can be written


@dataclass(frozen=True)
class Run:
    """A finished run, opened: its config, its result, and the client and server it holds."""

    directory: Path
    config: Config
    result: Mapping[str, Any]
    split: Split

    @cached_property
    def data(self) -> ImageSet:
        """The images the run used, read again; refused if they have changed."""
        data = build_data(self.config)
        if data.sha256 != self.result["data"].get("sha256"):
            raise UsageError(
                f"{self.config.data.source}: not the images {self.directory} was trained with (hash differs)"
            )
        return data


def new_directory(out: Path | None) -> Path:
    """Make the run's directory: `out`, or the next free one under runs/."""
    if out is not None and out.is_file():
        raise UsageError(f"{out} is a file; choose another --out")
    if out is not None and out.exists() and not _is_free(out):
        raise UsageError(f"{out} is not empty; go on with `--resume {out}` or choose another --out")
    place = out or Path("runs")
    try:
        out = out or _next_free(place)
        out.mkdir(parents=True, exist_ok=True)
        (out / PROBE).touch()
        (out / PROBE).unlink()
    except OSError as error:
        raise UsageError(f"cannot write in {place}: {error.strerror}; choose another --out") from None
    return out


def _is_free(out: Path) -> bool:
    """Whether nothing is there, or only what a kill left before the run began."""
    return {path.name for path in out.iterdir()} <= {PROBE, SCRATCH}


def _next_free(place: Path) -> Path:
    """A new directory `place`/NNN; of two runs that ask at once, each gets its own."""
    place.mkdir(parents=True, exist_ok=True)
    taken = [int(p.name) for p in place.iterdir() if p.name.isdecimal()]
    for number in itertools.count(max(taken, default=0) + 1):
        with suppress(FileExistsError):
            (place / f"{number:03d}").mkdir()
            return place / f"{number:03d}"
    raise AssertionError("numbers never end")


def write_start(directory: Path, config: Config) -> None:
    """What is known before the first step."""
    write_text(directory / "config.yaml", to_yaml(config))
    write_environment(directory)


def write_environment(directory: Path) -> None:
    """Where the run began; one that goes on elsewhere keeps it."""
    if not (directory / "env.json").exists():
        write_text(directory / "env.json", json.dumps(environment(), indent=2) + "\n")


def write_finish(directory: Path, config: Config, trained: Trained, data: ImageSet) -> dict[str, Any]:
    """Measure the trained client on the victims and write model/ and result.json."""
    split = trained.split
    result = {
        "schema_version": SCHEMA_VERSION,
        "seed": config.training.seed,
        "commit": commit(),
        "splitveil": __version__,
        "data": {"name": data.name, "sha256": data.sha256, "notes": list(data.notes)},
        "epochs": len(trained.history),
        "best_epoch": trained.best_epoch,
        "stopped": trained.stopped,
        "seconds": round(trained.seconds, 2),
        "broken_steps": trained.broken,
        "accuracy": {
            "selection": trained.selection_accuracy,
            "victims": accuracy(split, data.victims.to(split.device), seed=config.training.seed),
        },
        "parameters": {
            "encoder": sum(p.numel() for p in split.client.encoder.parameters()),
            "head": sum(p.numel() for p in split.server.parameters()),
        },
    }
    model = directory / "model"
    make_directory(model)
    write_tensors(model / "encoder.safetensors", split.client.encoder.state_dict())
    write_tensors(model / "head.safetensors", split.server.state_dict())
    manifest = {"image_shape": list(data.image_shape), "n_classes": data.n_classes, "mechanism": config.mechanism}
    write_text(model / "manifest.json", json.dumps(manifest, indent=2) + "\n")
    write_text(directory / "result.json", json.dumps(result, indent=2) + "\n")
    return result


def read_run_config(directory: Path) -> Config:
    """The config a run was started with."""
    path = directory / "config.yaml"
    if not path.exists():
        make = f"make one with `splitveil train --out {directory}`"
        hint = "give one that `splitveil train` made" if directory.exists() else make
        raise UsageError(f"{directory}: not a run directory (no config.yaml); {hint}")
    words = read_yaml(path)
    if not words:
        raise UsageError(f"{path}: is empty; put back a copy, or train a new run")
    return parse(words)


def open_run(directory: Path | str) -> Run:
    """A finished run's client and server, in eval mode on the CPU."""
    directory = Path(directory)
    config = read_run_config(directory)
    if not (directory / "result.json").exists():
        raise UsageError(f"{directory}: the run is not finished; go on with `splitveil train --resume {directory}`")
    manifest = directory / "model" / "manifest.json"
    facts = _read_json(manifest, needs={"image_shape": list, "n_classes": int, "mechanism": list})
    _refuse_edited(directory / "config.yaml", config, facts["mechanism"])
    split = build_split(
        config, image_shape=_shape(manifest, facts["image_shape"]), n_classes=facts["n_classes"], fresh=False
    )
    load_weights(split.client.encoder, directory / "model" / "encoder.safetensors")
    load_weights(split.server, directory / "model" / "head.safetensors")
    split.client.eval()
    split.server.eval()
    result = _read_json(directory / "result.json", needs={"data": dict, "accuracy": dict})
    return Run(directory, config, result, split)


def _shape(manifest: Path, sides: list[Any]) -> tuple[int, int, int]:
    match sides:
        case [int(channels), int(height), int(width)] if min(sides) > 0:
            return channels, height, width
    raise UsageError(f"{manifest}: image_shape is {sides}, not three sizes; the run directory is damaged")


def _refuse_edited(path: Path, config: Config, trained: object) -> None:
    """The mechanism holds no weights, so nothing else would tell that it is not the one of the training."""
    if config.mechanism != trained:
        now, was = json.dumps(config.mechanism, default=str), json.dumps(trained)
        raise UsageError(
            f"{path}: mechanism is {now}, but the run was trained with {was} (model/manifest.json); "
            "put that back, or train a new run"
        )


def refuse_ranks(what: str) -> None:
    """Only training is shared by the processes of torchrun."""
    if n_ranks() > 1:
        raise UsageError(f"{what} is done by one process; call it without torchrun")


def environment() -> dict[str, Any]:
    """Versions and machine, for env.json and `doctor`."""
    import numpy

    return {
        "splitveil": __version__,
        "commit": commit(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": system(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerators": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def system() -> str:
    """System, its release, machine and C library; what comes after a release's number (a builder's tag) is left out."""
    release = re.match(r"\d+(\.\d+)?", platform.release())
    names = [platform.system(), release.group() if release else "", platform.machine()]
    library = "".join(platform.libc_ver())
    return "-".join(filter(None, names)) + (f"-with-{library}" if library else "")


def commit() -> str | None:
    """The commit this code was run from, where it is a git checkout."""
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _read_json(path: Path, *, needs: Mapping[str, type]) -> dict[str, Any]:
    try:
        words = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read ({error}); the run directory is incomplete") from None
    if not isinstance(words, dict):
        raise UsageError(f"{path}: has no keys; the run directory is damaged")
    for key, kind in needs.items():
        if not isinstance(words.get(key), kind):
            raise UsageError(f"{path}: has no {key} as it was written; the run directory is damaged")
    return words
