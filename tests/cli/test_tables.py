"""A result as tables: what a flag means is said, and no name is cut off."""

from dataclasses import replace

import pytest

from splitveil.attacks import Probe, Ridge, Threat
from splitveil.cli.tables import show_result
from splitveil.evaluation import Flag, FlagName, Inquiry, Result, Suite, Trial, evaluate
from splitveil.evaluation.flags import UNDERSTATES
from splitveil.fitting import Plan
from worlds.evaluations import ROLES, WORLD

QUICK = Plan(steps=4, check_every=2)


@pytest.fixture(scope="module")
def result() -> Result:
    asked = Inquiry(Probe(plan=QUICK, groups=(0, 1), attribute="something-long"), Threat())
    return evaluate(WORLD.client(), Suite("one", (Trial(Ridge(), Threat()),), inquiries=(asked,)), ROLES)


def shown(result: Result, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    show_result(result)
    return capsys.readouterr().out


def test_what_a_black_box_that_beats_a_white_box_means_is_said(
    result: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    flag = Flag(FlagName.BLACK_BEATS_WHITE, f"another knows less; {UNDERSTATES}")
    flagged = replace(result, attacks=(replace(result.best, flags=(flag,)),))
    assert "understates what leaks" in shown(flagged, capsys).replace("\n", " ")
    assert "understates" not in shown(result, capsys)


def test_a_name_is_folded_rather_than_cut(result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [line.split("│")[1].strip() for line in shown(result, capsys).splitlines() if line.startswith("│")]
    assert "something-long-probe-linear" in "".join(rows)
