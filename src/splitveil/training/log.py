"""One JSON line an epoch in metrics.jsonl, and the same numbers in TensorBoard where it is installed."""

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from splitveil.check import RunError
from splitveil.training.checkpoint import write_text

NAME = "metrics.jsonl"


class Log:
    """The run's diary. With no directory it keeps none."""

    def __init__(self, directory: Path | None) -> None:
        self._path = None if directory is None else directory / NAME
        self._board = None if directory is None else _board(directory / "tensorboard")

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Append one epoch."""
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise RunError(f"cannot write {self._path}: {error.strerror or error}") from error
        if self._board is not None:
            for name, value in record.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(name, value, record["epoch"])

    def cut_back(self, epochs: int) -> None:
        """Forget lines past the checkpoint a run goes on from, so that no epoch stands there twice."""
        if self._path is not None and self._path.exists():
            lines = [line for line in self._path.read_text().splitlines() if _epoch_of(line) < epochs]
            write_text(self._path, "".join(f"{line}\n" for line in lines))

    def close(self) -> None:
        """Flush what is buffered."""
        if self._board is not None:
            self._board.close()


def read_log(directory: Path) -> list[dict[str, Any]]:
    """The epochs logged in a run directory."""
    path = directory / NAME
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _epoch_of(line: str) -> float:
    try:
        return float(json.loads(line)["epoch"])
    except (json.JSONDecodeError, KeyError, TypeError):
        return float("inf")  # a line cut short by a kill


def _board(directory: Path) -> Any:
    if importlib.util.find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard.writer import SummaryWriter

    return SummaryWriter(str(directory))
