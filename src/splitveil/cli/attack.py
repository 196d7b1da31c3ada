"""`splitveil attack` and `splitveil evaluate`: a finished run, measured again from its files, and attacked."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from splitveil.bounds import Bound
from splitveil.check import RunError
from splitveil.cli.display import err, out, print_json
from splitveil.cli.limits import limits_of, show_limits
from splitveil.cli.runs import Run, device_of, open_run, refuse_ranks
from splitveil.data import ImageSet
from splitveil.evaluation import Result, Suite, Update, suite_named
from splitveil.evaluation import evaluate as run_suite
from splitveil.split import Client
from splitveil.training import accuracy, find_device


class AttackBar:
    """Shows which attack runs, how its error falls, and what each finished one reached."""

    def __init__(self, label: str, *, quiet: bool) -> None:
        self._label, self._quiet, self._console = label, quiet, err()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("attacks · {task.fields[shown]}"),
            TimeElapsedColumn(),
            console=self._console,
            disable=quiet or not self._console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task(label, total=None, shown="")

    def __enter__(self) -> "AttackBar":
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def __call__(self, update: Update) -> None:
        """Take one update of an evaluation."""
        shown = update.trial
        if update.check is not None:
            shown += f" · step {update.check.step} · selection MSE {update.check.score:.4f}"
        done = update.index + (update.mse is not None)
        self._bar.update(self._task, completed=done, total=update.total, shown=shown)
        if update.mse is not None and not self._quiet:
            kept = " (kept from before)" if update.was_stored else ""
            self._console.print(f"{self._label}: {update.trial}  MSE {update.mse:.4f}{kept}")


def run_attacks(
    client: Client,
    data: ImageSet,
    directory: Path,
    *,
    suite: str | Suite,
    label: str,
    quiet: bool,
    seeds: Sequence[int] = (0,),
    undefended: Result | None = None,
    bounds: Sequence[Bound] = (),
) -> Result:
    """Play a suite, keep every finished attack in `directory`, and show the way."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with AttackBar(label, quiet=quiet) as bar:
            return run_suite(
                client,
                suite,
                data,
                seeds=seeds,
                out=directory,
                undefended=undefended,
                bounds=bounds,
                progress=bar,
            )
    except KeyboardInterrupt:
        raise RunError("interrupted; finished attacks are kept, the same command goes on with the rest") from None


def attack(
    run: Path, *, suite: str, attacks: Sequence[str], n_seeds: int, device: str, as_json: bool, quiet: bool
) -> None:
    """`splitveil attack`."""
    chosen = _suite(suite, attacks)
    opened = _open_on(run, device)
    result = _attacked(opened, chosen, folder=suite, n_seeds=n_seeds, quiet=quiet or as_json)
    if as_json:
        typer.echo(result.to_json())
    elif not quiet:
        show_result(result)
        show_limits(result, opened.split.client)
        out().print(f"wrote {run / 'attacks' / suite}: result.json, and pictures of the best, median and worst")


def evaluate(
    run: Path,
    *,
    suite: str,
    n_seeds: int,
    min_accuracy: float | None,
    max_leak: float | None,
    device: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """`splitveil evaluate`."""
    chosen = _suite(suite, ())
    opened = _open_on(run, device)
    measured = _accuracies(opened)
    result = _attacked(opened, chosen, folder=suite, n_seeds=n_seeds, quiet=quiet or as_json)
    if as_json:
        facts = {"headline": result.headline, "leak": result.best.leak.mean, "mse": result.best.mse.mean}
        limits = [asdict(bound) for bound in result.bounds]
        told = {"unreliable": list(result.reasons), "bounds": limits}
        print_json({"run": str(run), "accuracy": measured, **facts, **told})
    elif not quiet:
        out().print(f"accuracy on the victims {measured['victims']:.1%} (selection {measured['selection']:.1%})")
        show_result(result)
        show_limits(result, opened.split.client)
    failed = _gates(measured["victims"], min_accuracy, result, max_leak)
    for line in failed:
        err().print(f"gate: {line}")
    if failed:
        raise typer.Exit(1)


def show_result(result: Result) -> None:
    """A table of every attack, worst first, with what should be known before it is believed."""
    table = Table(title=f"{result.suite} suite on {result.data}, {result.n_victims} victims")
    for name in ("attack", "knowledge", "leak", "MSE [95 %]", "SSIM", "LPIPS", "flags"):
        table.add_column(name, justify="left" if name in ("attack", "knowledge", "flags") else "right")
    for each in sorted(result.attacks, key=lambda a: a.mse.mean):
        table.add_row(
            each.attack,
            each.knowledge,
            f"{each.leak.mean:.2f}",
            f"{each.mse.mean:.4f} [{each.mse.low:.4f}, {each.mse.high:.4f}]",
            "–" if each.ssim is None else f"{each.ssim.mean:.2f}",
            "–" if each.lpips is None else f"{each.lpips.mean:.2f}",
            ", ".join(flag.name for flag in each.flags),
        )
    console = out()
    console.print(table)
    console.print(f"worst case: {result.headline}, leak {result.best.leak.mean:.2f} (0 nothing, 1 exact)", markup=False)
    for reason in result.reasons:
        console.print(f"not to be believed yet: {reason}", markup=False)


def _suite(name: str, attacks: Sequence[str]) -> Suite:
    suite = suite_named(name)
    return suite.only(attacks) if attacks else suite


def _open_on(run: Path, device: str) -> Run:
    place = find_device(device)
    refuse_ranks("attacking")
    opened = open_run(run)
    opened.split.to(place)
    return opened


def _attacked(opened: Run, suite: Suite, *, folder: str, n_seeds: int, quiet: bool) -> Result:
    directory, label, client = opened.directory / "attacks" / folder, opened.directory.name, opened.split.client
    return run_attacks(
        client,
        opened.data,
        directory,
        suite=suite,
        label=label,
        quiet=quiet,
        seeds=range(n_seeds),
        bounds=limits_of(client, opened.data, suite, label=label, quiet=quiet),
    )


def _accuracies(opened: Run) -> dict[str, float]:
    device = device_of(opened.split)
    parts = {"selection": opened.data.selection, "victims": opened.data.victims}
    return {
        role: accuracy(opened.split, part.to(device), seed=opened.config.training.seed) for role, part in parts.items()
    }


def _gates(measured: float, least: float | None, result: Result, most: float | None) -> list[str]:
    failed = []
    if least is not None and measured < least:
        failed.append(f"accuracy {measured:.4f} is below {least}")
    if most is not None and result.best.leak.mean > most:
        failed.append(f"leak {result.best.leak.mean:.4f} ({result.headline}) is above {most}")
    if most is not None and result.unreliable:
        failed.append(f"the leak cannot be relied on: {result.reasons[0]}")
    return failed
