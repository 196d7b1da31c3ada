"""`splitveil train`: everything is built and checked before anything is written."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from splitveil.check import RunError, UsageError
from splitveil.cli.build import build_data, build_split, build_terms
from splitveil.cli.config import Config, read_config
from splitveil.cli.display import TrainingBar, print_json
from splitveil.cli.display import out as stdout
from splitveil.cli.runs import new_directory, read_run_config, write_finish, write_start
from splitveil.data import ImageSet
from splitveil.split import Split
from splitveil.training import Term, find_device
from splitveil.training import train as run_training


@dataclass(frozen=True)
class Prepared:
    """A run that can begin."""

    config: Config
    data: ImageSet
    split: Split
    terms: list[Term]


def prepare(config: Config, data: ImageSet | None = None) -> Prepared:
    """Build all a config names; any mistake shows here, before a file is written."""
    data = data or build_data(config)
    split = build_split(config, image_shape=data.image_shape, n_classes=data.n_classes)
    return Prepared(config, data, split, build_terms(config.regularizers))


def carry_out(
    prepared: Prepared, directory: Path, *, label: str, device: str, quiet: bool, resume: bool = False
) -> dict[str, Any]:
    """Train in a directory that is ready, and write what came of it."""
    with TrainingBar(label, quiet=quiet) as bar:
        trained = run_training(
            prepared.split,
            prepared.data,
            prepared.config.training,
            regularizers=prepared.terms,
            out=directory,
            resume=resume,
            device=device,
            watcher=bar,
        )
    if trained.stopped == "interrupted":
        raise RunError(f"interrupted; all is saved, go on with `splitveil train --resume {directory}`")
    return write_finish(directory, prepared.config, trained, prepared.data)


def train(
    *,
    config: Path | None,
    overrides: Sequence[str],
    out: Path | None,
    resume: Path | None,
    device: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """The command."""
    find_device(device)
    if resume is not None:
        if config is not None or out is not None:
            raise UsageError("--resume takes its config and directory from the run; leave -c and --out away")
        prepared, directory = prepare(_resumed(resume, overrides)), resume
    else:
        prepared = prepare(read_config(config, overrides))
        directory = new_directory(out)
        write_start(directory, prepared.config)
    result = carry_out(
        prepared, directory, label=directory.name, device=device, quiet=quiet or as_json, resume=resume is not None
    )
    if as_json:
        print_json({"run": str(directory), **result})
    elif not quiet:
        _summary(directory, result)


def _resumed(run: Path, overrides: Sequence[str]) -> Config:
    if overrides:
        raise UsageError("--resume goes on with the run's own settings; leave -s, --seed and the like away")
    return read_run_config(run)


def _summary(directory: Path, result: dict[str, Any]) -> None:
    console = stdout()
    accuracy = result["accuracy"]
    console.print(
        f"accuracy on the victims {accuracy['victims']:.1%} (selection {accuracy['selection']:.1%}, "
        f"epoch {result['best_epoch'] + 1}) in {result['seconds']:.0f} s"
    )
    if result["stopped"]:
        console.print(f"stopped early: {result['stopped']}, after {result['epochs']} epochs")
    console.print(f"wrote {directory}; next: splitveil evaluate {directory}")
