"""A label of the speed table is the number of rows of what was timed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from worlds.loading import load


class Asked:
    """Stands in for a memory, and knows of how many rows it was built."""

    def __init__(self, n: int) -> None:
        self.n = n

    def attend(self, q: Any) -> int:
        return self.n


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = load("benchmarks/private_attention.py")
    monkeypatch.setattr(module, "build", lambda n, device="cpu": (Asked(n), 0.0, 0.0))
    monkeypatch.setattr(module, "unit_rows", lambda n, seed, device="cpu": torch.zeros(min(n, 64), 64))
    return module


@pytest.mark.parametrize(("n", "label"), [(1_000, "1e3"), (100_000, "1e5"), (1_000_000, "1e6")])
def test_a_label_is_the_number_of_rows(n: int, label: str, speed: Any) -> None:
    assert speed.power(n) == label
    with pytest.raises(AssertionError, match="no power of ten"):
        speed.power(n + 1)


def test_a_private_timing_is_of_a_memory_with_the_rows_of_its_label(speed: Any) -> None:
    built = speed.memories((speed.SMALL, 100_000, speed.LARGE), device="cpu")
    asked = {name: call() for name, (call, _) in speed.cpu_calls(built).items() if name.startswith("private")}
    assert asked == {f"private, n = 1e{digits}, batch {batch}": 10**digits for digits in (3, 5, 6) for batch in (1, 64)}
    assert (speed.SMALL, speed.LARGE) == (10**3, 10**6)  # what a ratio of the two says


def test_a_graph_on_a_gpu_is_of_the_memory_of_its_label(speed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Asked, "capture", lambda self, b, device: self.attend, raising=False)
    built = speed.memories((speed.SMALL, speed.LARGE), device="cuda")
    asked = {name: call() for name, (call, _) in speed.cuda_calls(built).items() if name.startswith("private")}
    assert len(asked) == 12
    assert all(f"n = {speed.power(n)}, " in name for name, n in asked.items())


def test_a_run_keeps_what_the_runs_before_it_found(speed: Any, tmp_path: Path) -> None:
    out = tmp_path / "speed.json"
    assert speed.earlier(out) == []
    out.write_text(json.dumps({"ratios": {"a": 1}, "seconds": {"a": 2}, "earlier runs": [{"ratios": {"a": 3}}]}))
    assert speed.earlier(out) == [{"ratios": {"a": 3}}, {"ratios": {"a": 1}}]
