"""Someone who looks on and stops the run, and what a run that an older version stopped looks like."""

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from splitveil.training import Report, Watcher
from splitveil.training.checkpoint import Checkpoint, load, save


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


def forget_settings(run: Path) -> None:
    """Make a checkpoint one of a version that kept no settings."""
    found = load(run).checkpoint
    assert found is not None
    state = {key: value for key, value in found.state.items() if key != "settings"}
    assert len(state) == len(found.state) - 1
    save(run, Checkpoint(found.tensors, state))
