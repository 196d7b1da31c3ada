"""One JSON line an epoch in metrics.jsonl, and the same in TensorBoard where it is installed.

A number is shown as a scalar, a vector (the spread of every class, say) as a histogram of its finite entries.
"""

import importlib.util
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from splitveil.check import RunError
from splitveil.training.checkpoint import write_text

NAME = "metrics.jsonl"


class Log:
    """The run's diary. With no directory it keeps none."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._board: Any = None
        self._first = 0  # epoch of the next line after a resumption: TensorBoard forgets what came after it

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Append one epoch."""
        if self._directory is None:
            return
        try:
            with (self._directory / NAME).open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            self._show(self._directory, record)
        except OSError as error:
            raise RunError(f"cannot write in {self._directory}: {error.strerror or error}") from error

    def cut_back(self, epochs: int) -> None:
        """Forget lines past the checkpoint a run goes on from, so that no epoch stands there twice."""
        self._first = epochs
        path = None if self._directory is None else self._directory / NAME
        if path is not None and path.exists():
            lines = [line for line in path.read_text(encoding="utf-8").splitlines() if _epoch_of(line) < epochs]
            write_text(path, "".join(f"{line}\n" for line in lines))

    def close(self) -> None:
        """Flush what is buffered."""
        if self._board is not None:
            self._board.close()

    def _show(self, directory: Path, record: Mapping[str, Any]) -> None:
        if self._board is None:
            self._board = _board(directory / "tensorboard", first=self._first)
        if self._board is None:
            return
        for name, value in record.items():
            if isinstance(value, int | float):
                self._board.add_scalar(name, value, record["epoch"])
            elif finite := _finite(value):
                self._board.add_histogram(name, np.array(finite), record["epoch"])


def read_log(directory: Path) -> list[dict[str, Any]]:
    """The epochs logged in a run directory; a ValueError where a line is none."""
    path = directory / NAME
    lines: list[Any] = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if not all(isinstance(line, dict) and "epoch" in line for line in lines):
        raise ValueError("a line is not an epoch")
    return lines


def _epoch_of(line: str) -> float:
    try:
        return float(json.loads(line)["epoch"])
    except (json.JSONDecodeError, KeyError, TypeError):
        return float("inf")  # a line cut short by a kill


def _finite(value: object) -> list[float]:
    """The finite entries of a vector; none for anything else. A histogram of nothing, or of NaN, is refused."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    numbers = [float(entry) for entry in value if isinstance(entry, int | float)]
    return [number for number in numbers if math.isfinite(number)] if len(numbers) == len(value) else []


def _board(directory: Path, *, first: int) -> Any:
    if importlib.util.find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard.writer import SummaryWriter

    return SummaryWriter(str(directory), purge_step=first or None)
