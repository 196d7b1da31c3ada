"""`splitveil evaluate`: a finished run, measured again from its files."""

from pathlib import Path

import typer

from splitveil.cli.display import err, out, print_json
from splitveil.cli.runs import open_run
from splitveil.training import accuracy, find_device


def evaluate(run: Path, *, min_accuracy: float | None, device: str, as_json: bool, quiet: bool) -> None:
    """The command."""
    place = find_device(device)
    opened = open_run(run)
    opened.split.client.to(place)
    opened.split.server.to(place)
    measured = {
        role: accuracy(opened.split, getattr(opened.data, role).to(place), seed=opened.config.training.seed)
        for role in ("selection", "victims")
    }
    if as_json:
        print_json({"run": str(run), "accuracy": measured})
    elif not quiet:
        out().print(f"accuracy on the victims {measured['victims']:.1%} (selection {measured['selection']:.1%})")
    if min_accuracy is not None and measured["victims"] < min_accuracy:
        err().print(f"gate: accuracy {measured['victims']:.4f} is below {min_accuracy}")
        raise typer.Exit(1)
