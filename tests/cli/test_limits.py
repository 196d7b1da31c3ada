"""Bounds on the command line: printed with kind and assumptions, kept in the result, absent with a reason."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from splitveil import open_run
from splitveil.bounds import Bound
from splitveil.cli import limits
from splitveil.cli.main import run
from splitveil.data import ImageSet
from splitveil.evaluation import Result, suite_named
from splitveil.split import Client
from worlds.finished_runs import make_runs

MECHANISMS = {
    "noisy": '[{"name": "clip", "radius": 2.0}, {"name": "gaussian", "std": 4.0}]',
    "silent": "[]",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    make_runs(root, MECHANISMS)
    return root


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def call(*words: str) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            run([*words, "--device", "cpu"])
        assert not stop.value.code
        return capsys.readouterr().out

    return call


def test_bounds_are_printed_with_kind_and_assumptions(runs: Path, call: Callable[..., str]) -> None:
    attacks = ("--attack", "ridge", "--attack", "ridge-mean16")
    said = call("attack", str(runs / "noisy"), "--suite", "cheap", *attacks)
    result = Result.load(runs / "noisy" / "attacks" / "cheap" / "result-ridge-ridge-mean16.json")
    assert {bound.releases for bound in result.bounds} == {1, 16}
    assert {bound.name.split(",")[0] for bound in result.bounds} == {
        "information",
        "two points",
        "van Trees",
        "local DP",
    }
    assert "bounds, whatever the attack" in said
    for bound in result.bounds:
        for words in (bound.statement(), bound.kind, bound.name, *bound.holds_if):
            assert words in said
    assert "no bound" not in said
    assert "measured error below a proved bound" not in result.not_checked


def test_a_client_without_noise_is_told_that_nothing_bounds_its_leak(runs: Path, call: Callable[..., str]) -> None:
    said = call("attack", str(runs / "silent"), "--suite", "cheap", "--attack", "ridge")
    assert "bounds, whatever the attack" not in said
    assert said.count("no bound: ") == 2


def test_evaluate_hands_bounds_on_as_json(
    runs: Path, call: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from splitveil.cli import attack

    monkeypatch.setattr(attack, "suite_named", lambda name: suite_named(name).only(["ridge"]))
    words = json.loads(call("evaluate", str(runs / "noisy"), "--json"))
    found = [Bound.from_words(each) for each in words["bounds"]]
    assert any(bound.unit == "bits" for bound in found)


def test_bounds_are_found_once_and_anew_if_damaged(
    runs: Path, call: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = []
    found = limits.bounds_of

    def counted(client: Client, data: ImageSet, *, releases: list[int]) -> tuple[Bound, ...]:
        asked.append(releases)
        return found(client, data, releases=releases)

    monkeypatch.setattr(limits, "bounds_of", counted)
    folder = runs / "silent" / "attacks" / "cheap"
    shutil.rmtree(folder, ignore_errors=True)
    words = ("attack", str(runs / "silent"), "--suite", "cheap", "--attack", "ridge", "--json")

    def bounds() -> object:
        return json.loads(call(*words))["bounds"]

    before = bounds()
    assert bounds() == before
    assert len(asked) == 1
    (kept,) = folder.glob("bounds-*.json")
    text = kept.read_text()
    for damage in (text[:-2], '[{"name": "half"}]', "[1]"):
        kept.write_text(damage)
        assert bounds() == before
        assert kept.read_text() == text
    assert len(asked) == 4


def test_bounds_are_read_as_they_were_found(runs: Path, tmp_path: Path) -> None:
    opened, words = open_run(runs / "noisy"), {"label": "noisy", "quiet": True}
    client, data, suite = opened.split.client, opened.data, suite_named("cheap").only(["ridge"])
    first = limits.limits_of(client, data, suite, folder=tmp_path, **words)
    assert {bound.releases for bound in first} == {1}
    assert limits.limits_of(client, data, suite, folder=tmp_path, **words) == first
    assert len(list(tmp_path.iterdir())) == 1
    next(iter(client.encoder.parameters())).data.mul_(2)
    assert limits.limits_of(client, data, suite, folder=tmp_path, **words) != first
    assert len(list(tmp_path.iterdir())) == 2


def test_a_budget_shorter_than_the_bounds_takes_goes_on(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*_: object, **__: object) -> tuple[Bound, ...]:
        time.sleep(3.0)
        return ()

    monkeypatch.setattr(limits, "bounds_of", slow)
    shutil.rmtree(runs / "silent" / "attacks", ignore_errors=True)
    words, codes = ["--attack", "ridge", "--time-budget", "3", "--device", "cpu", "-q"], []
    for _ in range(2):
        with pytest.raises(SystemExit) as stop:
            run(["attack", str(runs / "silent"), "--suite", "cheap", *words])
        codes.append(stop.value.code or 0)
    assert codes == [3, 0], capsys.readouterr().err
