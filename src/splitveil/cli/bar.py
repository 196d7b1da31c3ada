"""How attacks are watched: one line of progress, and a line for each that is finished."""

from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from splitveil.cli.display import err
from splitveil.evaluation import Update


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
        self._told: set[tuple[str, int]] = set()

    def __enter__(self) -> "AttackBar":
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def __call__(self, update: Update) -> None:
        """Take one update of an evaluation."""
        shown = update.trial
        if update.check is not None:
            shown += f" · step {update.check.step} · selection {update.check.score:.4f}"
        self._bar.update(self._task, completed=update.index + update.is_done, total=update.total, shown=shown)
        if update.is_done and not self._quiet and (update.trial, update.seed) not in self._told:
            self._told.add((update.trial, update.seed))
            kept = " (already there)" if update.was_stored else ""
            found = f"right {update.right:.1%}" if update.mse is None else f"MSE {update.mse:.4f}"
            self._console.print(f"{self._label}: {update.trial}  {found}{kept}", soft_wrap=True)
