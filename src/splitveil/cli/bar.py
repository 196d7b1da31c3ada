"""How attacks are watched: one line of progress, and a line for each that is finished.

Where there is no terminal, and so no bar, a line a minute says what is being fitted and how far it is.
"""

import time
from collections.abc import Callable
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from splitveil.cli.display import err
from splitveil.evaluation import Update

BEAT = 60.0  # seconds without a line, after which one is due


class AttackBar:
    """Shows which attack runs, how its error falls, and what each finished one reached."""

    def __init__(self, label: str, *, quiet: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._label, self._quiet, self._console, self._clock = label, quiet, err(), clock
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
        self._last: Update | None = None
        self._best = float("inf")  # score of the fit in hand
        self._spoke = clock()

    def __enter__(self) -> "AttackBar":
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def __call__(self, update: Update) -> None:
        """Take one update of an evaluation."""
        self._follow(update)
        shown = _what(update)
        if update.check is not None:
            shown += f" · step {update.check.step} · selection {update.check.score:.4f}"
        self._bar.update(self._task, completed=update.index + update.is_done, total=update.total, shown=shown)
        if update.is_done and (update.trial, update.seed) not in self._told:
            self._told.add((update.trial, update.seed))
            kept = " (already there)" if update.was_stored else ""
            found = f"right {update.right:.1%}" if update.mse is None else f"MSE {update.mse:.4f}"
            self._say(f"{update.trial}  {found}{kept}")
        self.beat()

    def beat(self) -> None:
        """Say how far it is, if that is due: no bar is shown, and nothing was said for a minute."""
        update = self._last
        if self._console.is_terminal or update is None or self._clock() - self._spoke < BEAT:
            return
        check = update.check
        far = "" if check is None else f" · step {check.step} · best selection {self._best:.4f}"
        self._say(f"{_what(update)}{far} · {update.index + update.is_done} of {update.total} attacks finished")

    def _follow(self, update: Update) -> None:
        """Remember the update, and the best score of its fit; fewer steps than before are those of another fit."""
        if (check := update.check) is not None:
            before = self._last.check if self._last is not None and _what(self._last) == _what(update) else None
            is_same = before is not None and before.step <= check.step
            self._best = min(self._best, check.score) if is_same else check.score
        self._last = update

    def _say(self, line: str) -> None:
        if not self._quiet:
            self._console.print(f"{self._label}: {line}", markup=False, soft_wrap=True)
        self._spoke = self._clock()


def _what(update: Update) -> str:
    """What is being fitted: the attack, or what it needs first."""
    needed = "" if update.check is None else update.check.what
    return f"{needed} for {update.trial}" if needed else update.trial
