"""`splitveil train`: everything is built and checked before anything is written."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from splitveil.check import RunError, UsageError
from splitveil.cli.build import build_data, build_split, build_terms, model_words
from splitveil.cli.config import Config, read_config
from splitveil.cli.display import TrainingBar, print_json
from splitveil.cli.display import out as stdout
from splitveil.cli.runs import new_directory, read_run_config, write_environment, write_finish, write_start
from splitveil.data import ImageSet
from splitveil.split import Split
from splitveil.training import Term, find_device, rehearse, this_rank
from splitveil.training import train as run_training


@dataclass(frozen=True)
class Prepared:
    """A run that can begin."""

    config: Config
    data: ImageSet
    split: Split
    terms: list[Term]


def prepare(config: Config, *, device: str, data: ImageSet | None = None) -> Prepared:
    """Build all a config names and rehearse a step; any mistake shows here, before a file is written."""
    place = find_device(device)
    data = data or build_data(config)
    split = build_split(config, image_shape=data.image_shape, n_classes=data.n_classes)
    terms = build_terms(config.regularizers)
    rehearse(split, data, config.training, terms, device=place)
    return Prepared(config, data, split, terms)


def carry_out(
    prepared: Prepared, directory: Path | None, *, label: str, device: str, quiet: bool, resume: bool = False
) -> dict[str, Any]:
    """Train in a directory that is ready, and write what came of it; ranks but the first write nothing."""
    is_first = this_rank() == 0
    try:
        with TrainingBar(label, quiet=quiet or not is_first) as bar:
            trained = run_training(
                prepared.split,
                prepared.data,
                prepared.config.training,
                regularizers=prepared.terms,
                out=directory,
                resume=resume,
                device=device,
                watcher=bar,
                settings=model_words(prepared.config),
            )
        if trained.stopped == "interrupted":
            raise KeyboardInterrupt
        if not is_first or directory is None:
            return {}
        return write_finish(directory, prepared.config, trained, prepared.data)
    except KeyboardInterrupt:
        again = f"`splitveil train --resume {directory}`" if is_first else "--resume"
        raise RunError(f"interrupted; what was reached is saved, go on with {again}") from None


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
    is_first = this_rank() == 0
    directory: Path | None = resume
    if resume is not None:
        if config is not None or out is not None:
            raise UsageError("--resume takes its config and directory from the run; leave -c and --out away")
        prepared = prepare(_resumed(resume, overrides), device=device)
        if is_first:
            write_environment(resume)
    else:
        prepared = prepare(read_config(config, overrides), device=device)
        if is_first:
            directory = new_directory(out)
            write_start(directory, prepared.config)
    label = directory.name if directory is not None else ""
    result = carry_out(
        prepared, directory, label=label, device=device, quiet=quiet or as_json, resume=resume is not None
    )
    if is_first and as_json:
        print_json({"run": str(directory), **result})
    elif is_first and directory is not None and not quiet:
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
    console.print(f"wrote {directory}; next: splitveil evaluate {directory}", markup=False)
