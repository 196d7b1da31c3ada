"""`attack --probe`: a question about the class beside a suite, kept and told under its own name."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from splitveil.attacks import Probe
from splitveil.check import UsageError
from splitveil.cli import attack as commands
from splitveil.cli.main import run
from splitveil.cli.probes import read_probes, with_probes
from splitveil.cli.runs import open_run
from splitveil.evaluation import Result, Suite, cheap, suites
from splitveil.fitting import Plan
from worlds.finished_runs import Said, make_runs

pytestmark = pytest.mark.xdist_group("probes")  # what they share is made once

QUICK = Plan(steps=6, check_every=3)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    make_runs(root, {"noisy": "[{name: gaussian, std: 0.05}]"})
    return root


@pytest.fixture
def call(runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    monkeypatch.chdir(runs)
    monkeypatch.setattr(commands, "limits_of", lambda *_, **__: ())  # bounds have tests of their own
    monkeypatch.setattr(suites, "Probe", lambda **words: Probe(**words, plan=QUICK))

    def call(*words: str) -> Said:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            run(["attack", *words, "--suite", "cheap", "--attack", "ridge", "--device", "cpu"])
        return Said(int(stop.value.code or 0), *capsys.readouterr())

    return call


def test_a_question_is_told_with_chance_and_share_and_kept_under_its_name(call: Callable[..., Said]) -> None:
    said = call("noisy", "--probe", "low=0,1,2", "--probe", "odd=1,3")
    assert said.code == 0, said.err
    assert "low (classes 0, 1, 2): 75.0% of the victims; right" in said.out  # 48 of 64
    assert "odd (classes 1, 3): 50.0% of the victims; right" in said.out
    assert "chance 75.0%" in said.out
    assert "result-ridge-with-low-with-odd.json" in said.out.replace("\n", "")
    folder = Path("noisy/attacks/cheap")
    result = Result.load(folder / "result-ridge-with-low-with-odd.json")
    assert [each.name for each in result.inferences] == [
        f"{name}-probe-{kind}" for name in ("low", "odd") for kind in ("linear", "mlp")
    ]
    assert [each.chance for each in result.inferences[:2]] == [pytest.approx(48 / 64)] * 2
    assert not (folder / "result.json").exists()
    assert (folder / "attacks" / "low-probe-mlp--white-box-outsider-seed0.json").exists()


def test_a_finished_question_is_not_asked_again_and_without_it_nothing_is_told(call: Callable[..., Said]) -> None:
    call("noisy", "--probe", "odd=1,3")
    again = call("noisy", "--probe", "odd=1,3", "--probe", "first=0")
    assert "odd-probe-linear (white-box outsider)" in again.err
    assert again.err.count("(already there)") == 4  # ridge on both sides, and both who ask about odd
    bare = call("noisy", "--json")
    assert json.loads(bare.out)["inferences"] == []
    assert json.loads(bare.out)["suite"] == "cheap, only ridge"


def test_helpers_are_told_the_questions(call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, ...]] = []
    monkeypatch.setattr(commands, "play_together", lambda team, *_, **__: seen.append(team.words))
    call("noisy", "--workers", "2", "--probe", "odd=1, 3", "--quiet")
    assert seen[0][-1] == "--probe=odd=1, 3"


@pytest.mark.parametrize("words", ["", "=1", "a=", "a=1,", "a=-1", "a=1.5", "a/b=1", "1a=1", "a=1;2", "a b=1", " a=1"])
def test_what_is_no_question_is_refused(words: str) -> None:
    with pytest.raises(UsageError, match="such as animal=2,3"):
        read_probes([words])


def test_people_who_are_nobody_s_class_cannot_be_learned_from(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)
    opened = open_run(Path("noisy"))
    nobody = replace(opened.data, auxiliary=opened.data.auxiliary.unlabeled())
    monkeypatch.setitem(vars(opened), "data", nobody)
    with pytest.raises(UsageError, match="no classes to learn from"):
        with_probes(cheap(), read_probes(["odd=1,3"]), opened)


def test_a_suite_with_more_is_not_taken_for_the_whole_or_a_part() -> None:
    whole: Suite = cheap()
    assert whole.asking((), name="odd").file == "result-with-odd.json"
    assert not whole.asking((), name="odd").is_part
    assert whole.only(["ridge", "decoder-conv"]).file == "result-ridge-decoder-conv.json"
    assert whole.only(["ridge"]).asking((), name="odd").file == "result-ridge-with-odd.json"
