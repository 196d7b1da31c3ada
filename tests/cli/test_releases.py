"""Leak against releases, and attacks that end with their time and go on later."""

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from splitveil.check import UsageError
from splitveil.cli import attack as commands
from splitveil.cli import releases as curves
from splitveil.cli.main import run
from splitveil.cli.releases import read_counts
from splitveil.data import ImageSet
from splitveil.evaluation import Suite, play, suites
from splitveil.evaluation.trial import Outcome
from worlds.finished_runs import Said, make_runs

pytestmark = pytest.mark.xdist_group("releases")  # what they share is made once


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    make_runs(root)
    return root


@pytest.fixture
def call(runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    monkeypatch.chdir(runs)
    monkeypatch.setattr(commands, "limits_of", lambda *_, **__: ())  # bounds have tests of their own

    def call(*words: str) -> Said:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            run(["attack", *words, "--device", "cpu"])
        return Said(int(stop.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suites, "SHORT", suites.Plan(steps=6, check_every=3))


@pytest.mark.usefixtures("short")
def test_more_releases_leak_more_and_the_curve_is_kept(call: Callable[..., Said]) -> None:
    said = call("noisy", "--queries", "1,4,16", "--suite", "cheap", "--json")
    assert said.code == 0, said.err
    words = json.loads(said.out)
    folder = Path("noisy/attacks/queries-cheap")
    assert words == json.loads((folder / "queries.json").read_text())
    assert {(row["attack"], row["releases"]) for row in words["rows"]} == {
        (attack, count) for attack in ("ridge", "decoder-conv") for count in (1, 4, 16)
    }
    ridge = [row["leak"]["mean"] for row in words["rows"] if row["attack"] == "ridge"]
    assert ridge == sorted(ridge)
    assert ridge[-1] > ridge[0] + 0.05
    with Image.open(folder / "queries.png") as picture:
        assert min(picture.size) > 300


@pytest.mark.usefixtures("short")
def test_the_curve_is_shown_as_a_table(call: Callable[..., Said]) -> None:
    said = call("noisy", "--queries", "1,4,16", "--suite", "cheap")
    assert "leak against releases of one input" in said.out
    assert "queries.png" in said.out


@pytest.mark.usefixtures("short")
def test_each_attack_of_the_curve_says_its_time_and_memory(
    call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    words = ("noisy", "--queries", "1,4", "--suite", "cheap")
    assert call(*words).code == 0
    place = Path("noisy/attacks/queries-cheap")
    rows = json.loads((place / "queries.json").read_text())["rows"]
    stored = {(each["releases"], each["mse"]["mean"]): each for each in _attacks(place)}
    for row in (row for row in rows if row["releases"] in (1, 4)):
        spent = stored[row["releases"], row["mse"]["mean"]]
        assert 0 < row["seconds"] == spent["seconds"]
        assert 50 < row["peak_memory_mb"] == spent["peak_memory_mb"]
        assert row["peak_is_at_most"] is spent["peak_is_at_most"]
    said = call(*words).out
    assert _cells(said, "releases  ")[-2:] == ["s", "MB"]
    for row in rows:
        cells = _cells(said, f" {row['releases']}   {row['attack']} ")
        peak = f"{'≤ ' if row['peak_is_at_most'] else ''}{row['peak_memory_mb']:.0f}"
        assert cells[4:6] == [f"{row['seconds']:.0f}", peak]
    assert "MB: the peak of the device" in said


def test_a_row_of_the_curve_without_time_and_memory_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    span = {"mean": 0.5, "low": 0.4, "high": 0.6}
    row = {"releases": 1, "attack": "ridge", "leak": span, "mse": span, "flags": []}
    curves.show_curve({"n_victims": 3, "data": "smooth", "rows": [row]})
    assert _cells(capsys.readouterr().out, "ridge")[3:6] == ["0.5000", "–", "–"]


def _cells(said: str, found: str) -> list[str]:
    line = next(line for line in said.splitlines() if found in line)
    return re.split(" {2,}", line.strip())


def _attacks(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads((folder / "result.json").read_text())["attacks"])


@pytest.mark.usefixtures("short")
def test_other_numbers_of_releases_join_the_curve(call: Callable[..., Said]) -> None:
    def counts(said: Said) -> list[int]:
        assert said.code == 0, said.err
        words = json.loads(said.out)
        assert words == json.loads(Path("noisy/attacks/queries-cheap/queries.json").read_text())
        return [row["releases"] for row in words["rows"]]

    words = ("noisy", "--suite", "cheap", "--json", "--queries")
    counts(call(*words, "1,4,16"))
    assert counts(call(*words, "2,4")) == [1, 1, 2, 2, 4, 4, 16, 16]
    other = call(*words, "1,4", "--seeds", "2")
    assert counts(other) == [1, 1, 4, 4]
    assert "queries.json is of other victims or seeds, or damaged: it is replaced" in other.err
    Path("noisy/attacks/queries-cheap/queries.json").write_text("{")
    assert "it is replaced" in call(*words, "1,4").err


@pytest.mark.usefixtures("short")
def test_each_suite_keeps_its_own_curve(call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "releases", lambda counts, **_: suites.releases(counts, is_short=True))
    for suite in ("standard", "cheap"):
        said = call("noisy", "--queries", "1,4", "--suite", suite)
        assert said.code == 0, said.err
        folder = Path("noisy/attacks") / f"queries-{suite}"
        assert f"wrote {folder}: queries.png, queries.json" in said.out
        assert {path.name for path in folder.iterdir()} >= {"queries.json", "queries.png", "attacks"}


def test_changed_images_are_refused_before_anything_is_written(
    call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageSet, "sha256", "00")
    said = call("silent", "--suite", "full")
    assert said.code == 2
    assert "not the images" in said.err
    assert not Path("silent/attacks/full").exists()


def test_a_curve_is_compared_with_no_other_run(call: Callable[..., Said]) -> None:
    said = call("noisy", "--queries", "1,4", "--undefended", "nowhere")
    assert said == (2, "", "error: --queries is compared with no other run; leave --undefended away\n")


def test_a_client_without_noise_is_refused(call: Callable[..., Said]) -> None:
    said = call("silent", "--queries", "1,4")
    assert said.code == 2
    assert "every release of an input is the same" in said.err
    assert not list(Path("silent").glob("attacks/queries*"))


def test_numbers_of_releases_are_read_sorted_and_once() -> None:
    assert read_counts("16, 1,4,4") == (1, 4, 16)
    for words in ("", "1,,2", "-1", "1.5", "0,1", "1,9999"):
        with pytest.raises(UsageError, match="--queries wants numbers"):
            read_counts(words)


@pytest.mark.usefixtures("short")
def test_time_that_is_up_ends_with_one_line_and_the_same_command_goes_on(
    call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(10**6))
    monkeypatch.setattr(play.time, "monotonic", lambda: float(next(now)))  # a second passes with every look
    words = ("noisy", "--suite", "cheap", "--time-budget", "150")
    first = call(*words)
    assert first.code == 3
    assert first.err.splitlines()[-1].startswith("error: the time budget is used up after")
    assert "the same command goes on" in first.err
    kept = len(list(Path("noisy/attacks/cheap/attacks").glob("*.json")))
    assert 0 < kept < 4
    assert not Path("noisy/attacks/cheap/result.json").exists()
    for _ in range(10):
        last = call(*words)
        if not last.code:
            break
    assert last.code == 0
    assert "(already there)" in last.err
    assert len(json.loads(Path("noisy/attacks/cheap/result.json").read_text())["attacks"]) == 4


@pytest.mark.usefixtures("short")
def test_an_interrupted_attack_says_how_to_go_on(call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(play, "run_trial", stopped)
        said = call("noisy", "--suite", "cheap", "--seeds", "2")
    assert said.code == 3
    assert said.err.splitlines()[-1].endswith("the same command goes on with the rest")
    assert call("noisy", "--suite", "cheap", "--seeds", "2").code == 0


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_attack_where_it_can_be_kept(
    call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, sent: signal.Signals
) -> None:
    real, words = play.run_trial, ("noisy", "--suite", "cheap", "--seeds", "3" if sent is signal.SIGTERM else "4")
    folder = Path("noisy/attacks/cheap/attacks")
    before = len(list(folder.glob("*.json")))

    def signaled(*args: object, **words: object) -> Outcome:
        outcome = real(*args, **words)  # earlier, an attack that tells how far it is would end unfinished
        os.kill(os.getpid(), sent)
        return outcome

    with monkeypatch.context() as patch:
        patch.setattr(play, "run_trial", signaled)
        said = call(*words)
    assert said.code == 3
    assert said.err.splitlines()[-1].startswith("error: interrupted; finished attacks are kept")
    assert len(list(folder.glob("*.json"))) == before + 1
    assert call(*words).code == 0


def test_what_could_not_be_played_is_said_in_one_line(
    call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    threats = (
        suites.Threat(),
        suites.Threat(suites.Box.BLACK, queries=4096),
        suites.Threat(suites.Box.BLACK, queries=512),
    )
    trials = [suites.Trial(suites.Ridge(), threat) for threat in threats]
    both = (suites.Threat(releases=4), suites.Threat(releases=4, insider=True))
    averaged = [suites.Trial(suites.Averaged(suites.Ridge(), 4), threat) for threat in both]
    monkeypatch.setattr(commands, "suite_named", lambda _: Suite("tiny", (*trials, *averaged)))
    few = "ridge (needs 4096 queries, there are images for 204); ridge (needs 512 queries, there are images for 204)"
    silent = "ridge-mean4 (nothing is random, so releases are alike)"
    assert f"\nnot played: {few}; {silent}\n" in call("silent").out
    assert f"\nnot played: {few}\n" in call("noisy").out
    monkeypatch.setattr(commands, "suite_named", lambda _: Suite("tiny", tuple(trials[:1])))
    assert "not played" not in call("silent").out


def test_the_table_shows_time_memory_and_inferences(call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    quick = suites.Plan(steps=6, check_every=3)
    asked = (suites.Inquiry(suites.Probe(plan=quick), suites.Threat()),)
    looked = suites.Recognition(batch=32, plan=quick)
    tiny = Suite("tiny", suites.cheap().trials[:1], inquiries=asked, recognition=looked)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(commands, "suite_named", lambda _: tiny)
    said = call("noisy")
    assert said.code == 0, said.err
    assert "MB" in said.out
    assert "a prior that attacks share counts where it was learned" in said.out
    assert "label-probe-linear" in said.out
    assert "classifier-on-reconstruction" in said.out
    assert "right" in said.err
