"""Someone who looks on and stops the run."""

import signal
from collections.abc import Mapping
from typing import Any

from splitveil.training import Report, Watcher


class StopAfter(Watcher):
    """Presses Ctrl-C after so many epochs."""

    def __init__(self, epochs: int) -> None:
        self.left = epochs

    def step(self, report: Report) -> None: ...

    def epoch(self, report: Report, record: Mapping[str, Any]) -> None:
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGINT)

    def note(self, line: str) -> None: ...
