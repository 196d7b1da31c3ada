"""`splitveil attack` and `splitveil evaluate`: a finished run, measured again from its files, and attacked."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import typer
from torch import nn

from splitveil.bounds import Bound
from splitveil.check import RunError, UsageError, positive, share
from splitveil.cli.against import Undefended, compared, refuse_stranger, undefended_run, why_not_compared
from splitveil.cli.bar import AttackBar
from splitveil.cli.deadline import Deadline
from splitveil.cli.display import err, out, print_json
from splitveil.cli.limits import limits_of, show_limits
from splitveil.cli.lock import alone_in
from splitveil.cli.probes import Attribute, read_probes, show_probes, with_probes
from splitveil.cli.releases import curve_folder, read_counts, releases_suite, show_curve, write_curve
from splitveil.cli.runs import Run, open_run, refuse_ranks
from splitveil.cli.tables import show_result
from splitveil.cli.workers import Team, Words, help_with, play_together
from splitveil.data import ImageSet
from splitveil.evaluation import SUITES, Progress, Result, Suite, Update, suite_named
from splitveil.evaluation import evaluate as run_suite
from splitveil.pausing import pausing
from splitveil.split import Client
from splitveil.training import accuracy, find_device
from splitveil.training.watch import StopWhen

NEVER = Deadline()


@dataclass(frozen=True)
class Budget:
    """How much is played."""

    n_seeds: int
    deadline: Deadline = NEVER
    team: Team | None = None  # None: this process alone


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
    bounds: Callable[[], Sequence[Bound]] = tuple,
    head: nn.Module | None = None,
    deadline: Deadline = NEVER,
    team: Team | None = None,
    interrupted: str = "interrupted; finished attacks are kept, the same command goes on with the rest",
) -> Result:
    """Play a suite, keep every finished attack in `directory`, and show the way; Ctrl-C and SIGTERM lose nothing."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with _stoppable() as stop, pausing(stop):
            known = bounds()
            stop()
            with AttackBar(label, quiet=quiet) as bar, pausing(bar.beat):
                words = Words(out=directory, seeds=seeds, head=head, progress=_both(bar, stop))
                if team is not None:
                    play_together(team, client, suite, data, words, deadline=deadline)
                return run_suite(
                    client, suite, data, **words, undefended=undefended, bounds=known, time_budget=deadline.left
                )
    except KeyboardInterrupt:
        raise RunError(interrupted) from None


@contextmanager
def _stoppable() -> Iterator[Callable[[], None]]:
    """Remember Ctrl-C and SIGTERM, and interrupt where what is in hand can be kept: where it is called."""
    with StopWhen(None) as stop:

        def ask() -> None:
            if stop.reason() is not None:
                raise KeyboardInterrupt

        yield ask


def _both(bar: AttackBar, stop: Callable[[], None]) -> Progress:
    def watch(update: Update) -> None:
        bar(update)
        stop()

    return watch


def attack(
    run: Path,
    *,
    suite: str,
    attacks: Sequence[str],
    queries: str | None,
    probes: Sequence[str],
    n_seeds: int,
    n_workers: int,
    helper: int | None,
    until: float | None,
    time_budget: float | None,
    undefended: Path | None,
    device: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """`splitveil attack`."""
    deadline = _deadline(until, time_budget)
    counts, asked = () if queries is None else _counts(queries, undefended), read_probes(probes, queries=queries)
    chosen, known = _suite(suite, () if counts else attacks), undefended_run(undefended, suite, of=run)
    opened = _open_on(run, device)
    refuse_stranger(known, opened)
    chosen = with_probes(chosen, asked, opened)
    if counts:
        chosen = releases_suite(counts, suite=suite, attacks=attacks, client=opened.split.client)
    if helper is not None:
        place = curve_folder(run, suite) if counts else run / "attacks" / suite
        help_with(helper, opened, chosen, directory=place, seeds=range(n_seeds), deadline=deadline)
        return
    words = (*_words(run, suite, attacks, queries, n_seeds, device), *(f"--probe={each}" for each in probes))
    budget = Budget(n_seeds, deadline, Team(n_workers, words) if n_workers > 1 else None)
    if counts:
        _show_curve(opened, chosen, counts, curve_folder(run, suite), budget, as_json=as_json, quiet=quiet)
        return
    result = _attacked(opened, chosen, folder=suite, budget=budget, undefended=known, quiet=quiet or as_json)
    if as_json:
        typer.echo(result.to_json())
    elif not quiet:
        _show(result, opened, known, asked)
        wrote = f"wrote {run / 'attacks' / suite}: {chosen.file}, and pictures of the best, median and worst"
        out().print(wrote, markup=False)


def _deadline(until: float | None, time_budget: float | None) -> Deadline:
    positive("--time-budget", 1.0 if time_budget is None else time_budget, hint="leave it out for no limit")
    return Deadline.of(until) if until is not None else Deadline.after(time_budget)


def _counts(queries: str, undefended: Path | None) -> tuple[int, ...]:
    if undefended is not None:
        raise UsageError("--queries is compared with no other run; leave --undefended away")
    return read_counts(queries)


def _words(
    run: Path, suite: str, attacks: Sequence[str], queries: str | None, n_seeds: int, device: str
) -> tuple[str, ...]:
    """This command again, for those who take part in it."""
    only = [word for name in attacks for word in ("--attack", name)]
    asked = [] if queries is None else ["--queries", queries]
    return ("attack", str(run), "--suite", suite, *only, *asked, "--seeds", str(n_seeds), "--device", device)


def _show_curve(
    opened: Run, suite: Suite, counts: tuple[int, ...], folder: Path, budget: Budget, *, as_json: bool, quiet: bool
) -> None:
    """Leak against the number of releases, as table, plot and JSON; then what bounds it at each number."""
    result = _attacked(opened, suite, folder=folder.name, budget=budget, counts=counts, quiet=quiet or as_json)
    curve = write_curve(result, counts, folder)
    if as_json:
        print_json(curve)
    elif not quiet:
        show_curve(curve)
        show_limits(result, opened.split.client, opened.data)
        out().print(f"wrote {folder}: queries.png, queries.json", markup=False, soft_wrap=True)


def evaluate(
    run: Path,
    *,
    suite: str,
    n_seeds: int,
    min_accuracy: float | None,
    max_leak: float | None,
    undefended: Path | None,
    device: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """`splitveil evaluate`."""
    for name, gate in (("--min-accuracy", min_accuracy), ("--max-leak", max_leak)):
        if gate is not None:
            share(name, gate, hint="it is a share, not a percentage")
    chosen, known = _suite(suite, ()), undefended_run(undefended, suite, of=run)
    opened = _open_on(run, device)
    refuse_stranger(known, opened)
    measured = _accuracies(opened)
    budget = Budget(n_seeds)
    result = _attacked(opened, chosen, folder=suite, budget=budget, undefended=known, quiet=quiet or as_json)
    if as_json:
        facts = {"headline": result.headline, "leak": result.best.leak.mean, "mse": result.best.mse.mean}
        limits = [asdict(bound) for bound in result.bounds]
        told = {"unreliable": list(result.reasons), "bounds": limits}
        print_json({"run": str(run), "accuracy": measured, **facts, **told})
    elif not quiet:
        out().print(f"accuracy on the victims {measured['victims']:.1%} (selection {measured['selection']:.1%})")
        _show(result, opened, known)
    failed = _gates(measured["victims"], min_accuracy, result, max_leak)
    for line in failed:
        err().print(f"gate: {line}", markup=False)
    if failed:
        raise typer.Exit(1)


def _show(result: Result, opened: Run, undefended: Undefended | None, asked: Sequence[Attribute] = ()) -> None:
    show_result(result)
    show_probes(result, asked, opened.data)
    note = why_not_compared(opened, undefended)
    show_limits(result, opened.split.client, opened.data, () if note is None else (note,))


def _suite(name: str, attacks: Sequence[str]) -> Suite:
    suite = suite_named(name)
    for wanted in attacks:
        if wanted not in suite.names and (others := [s for s, make in SUITES.items() if wanted in make().names]):
            raise UsageError(f"suite {name!r} has no attack {wanted!r}; it is in {' and '.join(others)}: add --suite")
    return suite.only(attacks) if attacks else suite


def _open_on(run: Path, device: str) -> Run:
    place = find_device(device)
    refuse_ranks("attacking")
    opened = open_run(run)
    opened.split.to(place)
    return opened


def _attacked(
    opened: Run,
    suite: Suite,
    *,
    folder: str,
    budget: Budget,
    quiet: bool,
    undefended: Undefended | None = None,
    counts: Sequence[int] = (),
) -> Result:
    directory, label, client = opened.directory / "attacks" / folder, opened.directory.name, opened.split.client
    data = opened.data  # images that have changed are refused before anything is written

    def limits(run: Run) -> tuple[Bound, ...]:
        place, name = run.directory / "attacks" / folder, run.directory.name
        return limits_of(run.split.client, data, suite, counts, folder=place, label=name, quiet=quiet)

    def known() -> tuple[Bound, ...]:
        found = limits(opened)
        return (*found, *compared(opened, found, undefended, limits))

    with alone_in(directory):
        return run_attacks(
            client,
            data,
            directory,
            suite=suite,
            label=label,
            quiet=quiet,
            seeds=range(budget.n_seeds),
            undefended=None if undefended is None else undefended.result,
            bounds=known,
            head=opened.split.server,
            deadline=budget.deadline,
            team=budget.team,
        )


def _accuracies(opened: Run) -> dict[str, float]:
    parts = {"selection": opened.data.selection, "victims": opened.data.victims}
    return {
        role: accuracy(opened.split, part.to(opened.split.device), seed=opened.config.training.seed)
        for role, part in parts.items()
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
