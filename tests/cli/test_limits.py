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
from splitveil.evaluation import Result, suite_named, suites
from splitveil.split import Client
from worlds.finished_runs import make_runs

pytestmark = pytest.mark.xdist_group("limits")  # what they share is made once

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


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suites, "SHORT", suites.Plan(steps=6, check_every=3))


def curve(runs: Path) -> list[Bound]:
    """The bounds in full, as queries.json keeps them."""
    words = json.loads((runs / "noisy" / "attacks" / "queries-cheap" / "queries.json").read_text())
    return [Bound.from_words({k: v for k, v in each.items() if k != "leak_at_most"}) for each in words["bounds"]]


@pytest.mark.usefixtures("short")
def test_a_curve_of_releases_is_printed_and_kept_with_the_bounds_at_each_number(
    runs: Path, call: Callable[..., str]
) -> None:
    said = call("attack", str(runs / "noisy"), "--suite", "cheap", "--queries", "1,4")
    shown = said.partition("bounds, whatever the attack")[2]
    opened = open_run(runs / "noisy")
    found = limits.bounds_of(opened.split.client, opened.data, releases=(1, 4))
    assert len(found) > 8
    assert set(curve(runs)) == set(found)
    for bound in found:
        count = "1 release" if bound.releases == 1 else "4 releases"
        for words in (f"{bound.statement()}   {bound.kind}, {count}: {bound.name}\n", *bound.holds_if):
            assert words in shown
    assert said.index("leak against releases") < said.index("bounds, whatever") < said.index("queries.json")


@pytest.mark.usefixtures("short")
def test_bounds_of_other_numbers_of_releases_stay_in_the_curve(runs: Path, call: Callable[..., str]) -> None:
    words = ("attack", str(runs / "noisy"), "--suite", "cheap", "--json", "--queries")
    call(*words, "1,4")
    first = curve(runs)
    both = json.loads(call(*words, "4,16"))
    assert {bound.releases for bound in curve(runs)} == {1, 4, 16}
    assert len(curve(runs)) == len(first) // 2 * 3
    assert set(first) < set(curve(runs))
    most = {(each["name"], each["releases"]): each["leak_at_most"] for each in both["bounds"]}
    assert all(most["local DP", count] is None for count in (1, 4, 16))
    for bound in curve(runs):
        if bound.name == "two points":
            assert most[bound.name, bound.releases] == pytest.approx(1 - bound.safe / both["prior_mse"])
    assert most["two points", 1] < most["two points", 4] < most["two points", 16] < 1


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
