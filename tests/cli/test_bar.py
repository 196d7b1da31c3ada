"""Attacks that are watched without a terminal say how far they are, about once a minute."""

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from splitveil import pausing
from splitveil.cli import attack as commands
from splitveil.cli import bar as bars
from splitveil.cli.bar import AttackBar
from splitveil.cli.main import run
from splitveil.evaluation import Suite, Update, suites
from splitveil.fitting import Check
from worlds.finished_runs import MECHANISMS, make_runs

BEGUN = Update(3, 21, "decoder-conv (white-box outsider)", 0)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Hurried:
    """A minute and more passes with every look."""

    now: float = 0.0

    def __call__(self) -> float:
        self.now += 61
        return self.now


def at(step: int, score: float, what: str = "") -> Update:
    return replace(BEGUN, check=Check(step, 0.0, score, 0.0, what))


def play(bar: AttackBar, clock: Clock, *events: tuple[float, Update | None]) -> None:
    """Each update at its second; None: between two checks."""
    with bar:
        for second, update in events:
            clock.now = second
            bar.beat() if update is None else bar(update)


def test_a_line_a_minute_names_the_fit_its_step_and_its_best_score(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    events = [(0, BEGUN), (30, at(100, 0.02)), (59, at(200, 0.01)), (61, at(300, 0.03)), (90, at(400, 0.04))]
    play(AttackBar("a", quiet=False, clock=clock), clock, *events, (120, None), (122, None), (181, None))
    line = "a: decoder-conv (white-box outsider) · step {} · best selection 0.0100 · 3 of 21 attacks finished"
    assert capsys.readouterr().err.splitlines() == [line.format(300), line.format(400)]


def test_before_the_first_check_the_name_alone_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    play(AttackBar("a", quiet=False, clock=clock), clock, (70, None), (70, BEGUN))
    assert capsys.readouterr().err == f"a: {BEGUN.trial} · 3 of 21 attacks finished\n"


def test_a_finished_attack_is_a_sign_of_life_too(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    done = replace(BEGUN, mse=0.0123)
    play(AttackBar("a", quiet=False, clock=clock), clock, (0, BEGUN), (59, done), (61, None), (118, None), (119, None))
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"a: {BEGUN.trial}  MSE 0.0123"
    assert second.endswith("4 of 21 attacks finished")


def test_a_judge_is_named_while_it_trains_and_its_score_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    judge, attack = at(250, 0.001, "judge of an outsider"), at(300, 0.05)
    play(AttackBar("a", quiet=False, clock=clock), clock, (61, judge), (122, attack), (183, at(10, 0.06)))
    said = [line.partition(" · best selection ")[0::2] for line in capsys.readouterr().err.splitlines()]
    name = BEGUN.trial
    assert [each[0] for each in said] == [
        f"a: judge of an outsider for {name} · step 250",
        f"a: {name} · step 300",
        f"a: {name} · step 10",
    ]
    assert [each[1][:6] for each in said] == ["0.0010", "0.0500", "0.0600"]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_no_line_beside_a_bar_or_where_silence_is_wanted(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    clock, file = Clock(), io.StringIO()
    monkeypatch.setattr(bars, "err", lambda: Console(file=file, force_terminal=is_terminal, highlight=False, width=200))
    bar = AttackBar("a", quiet=not is_terminal, clock=clock)
    play(bar, clock, (0, BEGUN), (70, at(100, 0.02)), (140, None))
    assert "best selection" not in file.getvalue()
    assert ("step 100" in file.getvalue()) is is_terminal


@pytest.fixture
def attacked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Suite], str]:
    """What the command says on stderr when its clock is hurried."""
    make_runs(tmp_path, {"noisy": MECHANISMS["noisy"]})
    monkeypatch.setattr(commands, "limits_of", lambda *_, **__: ())
    monkeypatch.setattr(commands, "AttackBar", partial(AttackBar, clock=Hurried()))

    def attacked(suite: Suite) -> str:
        monkeypatch.setattr(commands, "suite_named", lambda _: suite)
        with pytest.raises(SystemExit) as stop:
            run(["attack", str(tmp_path / "noisy"), "--device", "cpu"])
        said = capsys.readouterr().err
        assert not stop.value.code, said
        return said

    return attacked


def test_the_command_speaks_of_judges_and_attacks(attacked: Callable[[Suite], str]) -> None:
    looked = suites.Recognition(batch=32, plan=suites.Plan(steps=6, check_every=3))
    said = attacked(Suite("tiny", suites.cheap().trials[:1], recognition=looked))
    assert "noisy: judge of an outsider for ridge (white-box outsider) · step 6 · best selection 0." in said
    assert "noisy: ridge (white-box outsider) · step " in said


def test_the_command_speaks_between_two_checks(
    attacked: Callable[[Suite], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pausing, "UNASKED", 0.0)
    decoder = suites.DecoderAttack("conv", batch=32, plan=suites.Plan(steps=6, check_every=6))
    said = attacked(Suite("tiny", (suites.Trial(decoder, suites.Threat()),)))
    begun = "noisy: decoder-conv (white-box outsider) · 0 of 1 attacks finished\n"
    assert said.count(begun) == 6  # when it begins, and after five steps without a check
