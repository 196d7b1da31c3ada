"""How a run tells the outside what it is doing. `train` prints nothing: it calls a Watcher, and looks for a stop."""

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)  # Ctrl-C; what schedulers send before they kill


@dataclass(frozen=True)
class Report:
    """A run at one moment. Loss and accuracy are means over the epoch so far."""

    epoch: int
    n_epochs: int
    step: int  # over the whole run
    n_steps: int
    loss: float
    accuracy: float
    selection_accuracy: float | None  # known at the end of an epoch
    seconds: float


class Watcher(ABC):
    """Someone who looks on: a progress bar, a log, a test."""

    @abstractmethod
    def step(self, report: Report) -> None:
        """Called now and then inside an epoch (not each step: reading a loss stalls a GPU)."""

    @abstractmethod
    def epoch(self, report: Report, record: Mapping[str, Any]) -> None:
        """Called at the end of each epoch with the line that was logged."""

    @abstractmethod
    def note(self, line: str) -> None:
        """Called with what the user should know and no number tells."""


class Silent(Watcher):
    """Looks on and says nothing."""

    def step(self, report: Report) -> None: ...

    def epoch(self, report: Report, record: Mapping[str, Any]) -> None: ...

    def note(self, line: str) -> None: ...


class StopWhen:
    """Answers whether the run should end now, and why: Ctrl-C, SIGTERM, or the time budget.

    Inside the `with` block the first signal is remembered instead of raised, so the loop can finish its step and save;
    a second one interrupts at once.
    """

    def __init__(self, time_budget: float | None) -> None:
        self.started = time.monotonic()
        self._budget = time_budget
        self._interrupted = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopWhen":
        with suppress(ValueError):  # not the main thread: signals stay with whoever owns them
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def reason(self) -> str | None:
        """Why to stop, or None to go on."""
        if self._interrupted:
            return "interrupted"
        if self._budget is not None and self.seconds() >= self._budget:
            return "time budget"
        return None

    def seconds(self) -> float:
        """Seconds since the run (or its resumption) began."""
        return time.monotonic() - self.started

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True
