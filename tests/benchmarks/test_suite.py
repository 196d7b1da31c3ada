"""What the table of the whole suite takes for finished, how many victims a cell has, and flags that two rows show."""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from splitveil.attacks import Box, DiffusionAttack, OptimizationAttack, Ridge, Threat
from splitveil.attacks.recognition import Recognition
from splitveil.evaluation import FlagName, Trial
from splitveil.writing import replacing, write_tensors
from worlds.loading import ROOT, load

TRIALS = {"search": Trial(DiffusionAttack(), Threat()), "quick": Trial(Ridge(), Threat())}
SEARCH = Trial(OptimizationAttack(), Threat())
INSIDE = replace(SEARCH, threat=Threat(insider=True))
WHITE, BLACK = Trial(Ridge(), Threat()), Trial(Ridge(), Threat(Box.BLACK))


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The benchmark, whose files import each other by name."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    before = set(sys.modules)
    yield load("benchmarks/suite.py")
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(ROOT / "benchmarks")):
            del sys.modules[name]


def test_a_judge_that_is_being_written_is_not_trained(suite: Any, tmp_path: Path) -> None:
    judge, place, there = suite.Judge(True), tmp_path / "judge-insider-00.safetensors", tmp_path / "there"
    there.mkdir()
    share = sys.modules["suite_networks"].share
    with replacing(place) as fresh:
        fresh.write_bytes(b"half of it")
        assert list(tmp_path.glob("judge-insider-*.safetensors")) == [fresh]
        assert not suite._is_trained(judge, tmp_path)
        share([fresh], there)
        assert os.listdir(there) == []
    write_tensors(place, {"weight": torch.zeros(1)})
    assert suite._is_trained(judge, tmp_path)
    share([place], there)
    assert os.listdir(there) == [place.name]


def test_an_attack_that_full_does_not_have_is_named(suite: Any) -> None:
    with pytest.raises(SystemExit, match=r"no ridge-mean5; it has .*ridge-mean4"):
        suite.trials(argparse.Namespace(attacks=["ridge", "ridge-mean5"], attack_steps=None))


@pytest.mark.parametrize(
    ("kind", "victims", "searched", "n"),
    [("search", None, 9, 9), ("search", 5, 9, 5), ("search", 9, 5, 5), ("quick", 9, 5, 9), ("quick", None, 5, None)],
)
def test_no_cell_has_more_victims_than_all(
    kind: str, victims: int | None, searched: int, n: int | None, suite: Any
) -> None:
    words = argparse.Namespace(victims=victims, searched=searched, attack_steps=None)
    cell = suite.Cell(suite.Client("noise", 0.1, 0), TRIALS[kind])
    assert sys.modules["suite_cells"]._suite(cell, words).n_victims == n


MADE = "--std 0.2 --epochs 3 --victims 9 --attack-steps 4 --searched 5"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A client charged by slots, a search and a quick attack on it, as MADE says."""
    facts = {"noise_std": 0.2, "epochs": 3, "charged": {"slots": 0.4}}
    command = {"command": f"python benchmarks/suite.py DATA {MADE}"}
    (tmp_path / "surrogate-seed0.json").write_text(json.dumps(facts))
    for each in TRIALS.values():
        (tmp_path / f"surrogate-seed0--{each.slug}.json").write_text(json.dumps(command))
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, None),
        ({"std": 0.9, "epochs": 1}, "seed0.json was made with std 0.2, epochs 3, asked is std 0.9, epochs 1; ask for"),
        ({"surrogate_weight": 1.0}, "seed0.json was made with charge slots 0.4, asked is charge slots 1.0"),
        ({"surrogate": "plain"}, "seed0.json was made with charge slots 0.4, asked is charge plain 0.4"),
        ({"adversary_weight": 9.0}, None),  # it is no adversary
        ({"victims": 3}, "diffusion--white-box-outsider.json was made with victims 9, asked is victims 3"),
        ({"victims": None}, "was made with victims 9, asked is victims all"),
        ({"attack_steps": None}, "was made with attack-steps 4, asked is attack-steps all"),
        ({"searched": 7}, "diffusion--white-box-outsider.json was made with searched 5, asked is searched 7"),
    ],
)
def test_what_was_made_in_another_way_is_not_shown_for_what_is_asked(
    changes: dict[str, Any], says: str | None, suite: Any, kept: Path
) -> None:
    words = {"std": 0.2, "epochs": 3, "victims": 9, "attack_steps": 4, "searched": 5, "surrogate": "slots"}
    words |= {"surrogate_weight": 0.4, "adversary_weight": 0.3, "out": kept} | changes
    client = suite.Client("surrogate", words["std"], 0)
    jobs = [suite.Bounds(client), *(suite.Cell(client, each) for each in TRIALS.values())]
    with nullcontext() if says is None else pytest.raises(SystemExit, match=says):
        suite.refuse_others(argparse.Namespace(**words), jobs)


def row(trial: Trial, mse: float) -> dict[str, Any]:
    return {"attack": trial.name, "mse": mse, "mse_interval": [mse - 0.001, mse + 0.001], "flags": []}


@pytest.mark.parametrize(("mse", "is_flagged"), [(0.03, True), (0.0215, False)])
def test_a_white_box_that_a_black_box_beats_is_flagged(mse: float, is_flagged: bool, suite: Any) -> None:
    rows = [row(SEARCH, mse), row(INSIDE, mse), row(WHITE, 0.02), row(BLACK, 0.02)]
    trials = {trial.name: trial for trial in (SEARCH, INSIDE, WHITE, BLACK)}
    suite.flag_black_boxes(rows, trials)
    name = FlagName.BLACK_BEATS_WHITE
    assert [each["flags"] for each in rows] == [[name] if is_flagged else [], [], [], []]
    assert [each["not_checked"] for each in rows] == [[], [name], [], []]  # an insider has no black box here


@pytest.mark.parametrize("side", ["insider", "outsider"])
def test_the_judges_of_the_table_are_found_again(side: str) -> None:
    """One that is not would be trained anew for every cell, and pictures of one table shown to several."""
    (place,) = (ROOT / "results" / "suite" / "networks").glob(f"judge-{side}-*.safetensors")
    with safe_open(place, "pt") as file:
        assert file.metadata()["facts"].startswith(f"({Recognition()!r}, 10, 0, ")
