"""What the command line shows: progress on stderr, results on stdout."""

import json
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from splitveil.training import Report, Watcher


def out() -> Console:
    """Results."""
    return Console(highlight=False)


def err() -> Console:
    """Progress and remarks: never mixed into results."""
    return Console(stderr=True, highlight=False)


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2))


class TrainingBar(Watcher):
    """A progress bar with loss, accuracy and time left; one plain line an epoch where there is no terminal."""

    def __init__(self, label: str, *, quiet: bool) -> None:
        self._label, self._quiet = label, quiet
        self._console = err()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps · {task.fields[shown]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            disable=quiet or not self._console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task(label, total=None, shown="")
        self._last = time.monotonic()

    def __enter__(self) -> "TrainingBar":
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def step(self, report: Report) -> None:
        shown = f"loss {report.loss:.3f} · accuracy {report.accuracy:.1%}"
        self._bar.update(self._task, completed=report.step, total=report.n_steps, shown=shown)

    def epoch(self, report: Report, record: Mapping[str, Any]) -> None:
        if self._quiet:
            return
        line = (
            f"{self._label}: epoch {report.epoch + 1}/{report.n_epochs}  loss {report.loss:.3f}  "
            f"train {report.accuracy:.1%}  selection {report.selection_accuracy:.1%}  {report.seconds:.0f} s"
        )
        self._console.print(line, highlight=False)

    def note(self, line: str) -> None:
        self._console.print(f"{self._label}: {line}", highlight=False, markup=False, soft_wrap=True)
