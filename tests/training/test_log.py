"""metrics.jsonl: one line an epoch, none twice."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splitveil.training import log as diary
from splitveil.training.log import NAME, Log, read_log


def test_lines_past_the_checkpoint_and_cut_lines_are_forgotten(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for epoch in range(3):
        log.epoch({"epoch": epoch, "loss": 1.0})
    with (tmp_path / NAME).open("a") as file:
        file.write('{"epoch": 3, "lo')
    log.cut_back(2)
    log.close()
    assert [record["epoch"] for record in read_log(tmp_path)] == [0, 1]


def test_without_a_directory_nothing_is_written(tmp_path: Path) -> None:
    Log(None).epoch({"epoch": 0})
    assert read_log(tmp_path) == []


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    log = Log(tmp_path)
    record = {"epoch": 0, "loss": 0.1, "spread": [1.0, 2.0]}
    log.epoch(record)
    log.close()
    assert json.loads((tmp_path / NAME).read_text()) == record


class Board:
    """What a SummaryWriter was told."""

    def __init__(self) -> None:
        self.scalars: dict[str, tuple[float, int]] = {}
        self.histograms: dict[str, tuple[list[float], int]] = {}

    def add_scalar(self, name: str, value: float, epoch: int) -> None:
        self.scalars[name] = (value, epoch)

    def add_histogram(self, name: str, values: Any, epoch: int) -> None:
        assert isinstance(values, np.ndarray)
        self.histograms[name] = (values.tolist(), epoch)

    def close(self) -> None:
        pass


def test_numbers_become_scalars_and_vectors_histograms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board()
    monkeypatch.setattr(diary, "_board", lambda directory, first: board)
    nan, inf = float("nan"), float("inf")
    record = {
        "epoch": 3,
        "loss": 0.5,
        "plain/spread": [1.0, nan, 2.0],
        "plain/slot_mass": [1],
        "none": [],
        "broken": [nan, inf],
        "words": ["a"],
        "name": "slots",
        "nested": [[1.0], [2.0]],
        "missing": None,
    }
    log = Log(tmp_path)
    log.epoch(record)
    log.close()
    assert board.scalars == {"epoch": (3, 3), "loss": (0.5, 3)}
    assert board.histograms == {"plain/spread": ([1.0, 2.0], 3), "plain/slot_mass": ([1.0], 3)}


def test_without_tensorboard_only_lines_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diary, "_board", lambda directory, first: None)
    log = Log(tmp_path)
    log.epoch({"epoch": 0, "spread": [1.0]})
    log.close()
    assert read_log(tmp_path) == [{"epoch": 0, "spread": [1.0]}]


def test_tensorboard_itself_takes_what_is_handed_to_it(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = Log(tmp_path)
    log.epoch({"epoch": 0, "loss": 1.0, "spread": [0.0, 1.0, 3.0], "flat": [2.0]})
    log.close()
    seen = EventAccumulator(str(tmp_path / "tensorboard"))
    seen.Reload()
    assert sorted(seen.Tags()["histograms"]) == ["flat", "spread"]
    assert seen.Histograms("spread")[0].histogram_value.num == 3
