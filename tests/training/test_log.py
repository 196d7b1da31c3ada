"""metrics.jsonl: one line an epoch, none twice."""

import json
from pathlib import Path

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
