"""Differences between processes: what is compared, and that the page shows what was found."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from worlds.loading import ROOT, load


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return load("benchmarks/ranks.py")


def test_the_largest_difference_is_that_of_a_weight_and_of_nothing_else(ranks: Any, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    model, moments = torch.zeros(3, dtype=torch.float64), torch.zeros(2)
    save_file({"model/a": model, "optimizer/a": moments}, one)
    save_file({"model/a": model + torch.tensor([0.0, -0.25, 0.125]), "optimizer/a": moments + 1}, two)
    assert ranks.largest_difference(one, two) == 0.25
    save_file({"model/b": model}, two)
    with pytest.raises(AssertionError, match="do not hold the same tensors"):
        ranks.largest_difference(one, two)


def test_a_file_of_weights_alone_is_compared_whole(ranks: Any, tmp_path: Path) -> None:
    save_file({"0.weight": torch.zeros(2)}, tmp_path / "one")
    save_file({"0.weight": torch.full((2,), 0.5)}, tmp_path / "two")
    assert ranks.largest_difference(tmp_path / "one", tmp_path / "two") == 0.5


def test_the_page_shows_the_differences_that_were_found() -> None:
    found = json.loads((ROOT / "results" / "ranks.json").read_text())["largest_difference"]
    shown = re.findall(r"^\| .* \| (\d+e-\d+) \|$", (ROOT / "docs" / "multi-gpu.md").read_text(), re.MULTILINE)
    assert shown == [f"{value:.0e}" for value in found.values()]
