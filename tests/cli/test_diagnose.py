"""Diagnosis of a run's penalties from its log."""

import json
from pathlib import Path
from typing import Any

import pytest

from splitveil.check import UsageError
from splitveil.cli.config import Config, to_yaml
from splitveil.cli.diagnose import diagnose, remark, series


def record(epoch: int, **gauges: Any) -> dict[str, Any]:
    return {"epoch": epoch, "loss": 1.0, **{f"slots/{name}": value for name, value in gauges.items()}}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(to_yaml(Config()))
    return tmp_path


@pytest.mark.parametrize(
    ("gauges", "says"),
    [
        ({"effective_members": 0.04}, "few samples"),
        ({"gate_dims": 1e-8}, "next to nothing"),
        ({"over_hinge": 0.0}, "hinge is silent"),
        ({"charged": 1.0, "L": 5.0}, "leaks at least 5.0"),
        ({"broken": 3.0}, "3 steps"),
    ],
)
def test_each_way_to_protect_nothing_is_told(gauges: dict[str, float], says: str) -> None:
    assert says in "; ".join(remark("slots", [record(0, **gauges)]))


def test_a_sound_penalty_gets_no_remark() -> None:
    sound = record(0, effective_members=0.6, gate_dims=0.5, over_hinge=0.9, charged=6.0, L=5.0, broken=0.0)
    assert remark("slots", [sound]) == []


def test_series_keep_the_epochs_in_which_a_gauge_was_logged() -> None:
    records = [record(0), record(1, S=2.0), record(2, S=3.0)]
    epochs, values = series("slots", "S", records)
    assert (epochs, values.tolist()) == ([2, 3], [2.0, 3.0])


def test_a_picture_is_written_for_each_penalty(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [record(e, S=1.0, spread=[0.1, 0.2], threshold=0.15, slot_mass=[0.7, 0.3]) for e in range(3)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    diagnose(run, as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert Path(said["slots"]["picture"]).read_bytes().startswith(b"\x89PNG")


def test_a_run_without_penalties_says_how_to_add_one(run: Path) -> None:
    (run / "metrics.jsonl").write_text(json.dumps({"epoch": 0, "loss": 1.0}) + "\n")
    with pytest.raises(UsageError, match="regularizers="):
        diagnose(run, as_json=False)


@pytest.mark.parametrize(
    "damage",
    [b'{"epoch": 1, "lo', b"\x89PNG\xff\xfe\n", b"3\n", b'{"loss": 1.0}\n'],
    ids=["cut", "binary", "number", "bare"],
)
def test_a_damaged_log_is_named_in_one_line(run: Path, damage: bytes) -> None:
    place = run / "metrics.jsonl"
    place.write_bytes(json.dumps(record(0, penalty=1.0)).encode() + b"\n" + damage)
    with pytest.raises(UsageError, match=r"metrics\.jsonl: cannot be read \(.+\); remove the damaged lines") as said:
        diagnose(run, as_json=False)
    assert "\n" not in str(said.value)
    assert not list(run.glob("*.png"))
