"""The table of the whole suite: flags that two rows show."""

from dataclasses import replace
from typing import Any

import pytest

from splitveil.attacks import Box, OptimizationAttack, Ridge, Threat
from splitveil.evaluation import FlagName, Trial
from worlds.loading import ROOT, load

SEARCH = Trial(OptimizationAttack(), Threat())
INSIDE = replace(SEARCH, threat=Threat(insider=True))
WHITE, BLACK = Trial(Ridge(), Threat()), Trial(Ridge(), Threat(Box.BLACK))


def row(trial: Trial, mse: float) -> dict[str, Any]:
    return {"attack": trial.name, "mse": mse, "mse_interval": [mse - 0.001, mse + 0.001], "flags": []}


@pytest.mark.parametrize(("mse", "is_flagged"), [(0.03, True), (0.0215, False)])
def test_a_white_box_that_a_black_box_beats_is_flagged(
    mse: float, is_flagged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    rows = [row(SEARCH, mse), row(INSIDE, mse), row(WHITE, 0.02), row(BLACK, 0.02)]
    trials = {trial.name: trial for trial in (SEARCH, INSIDE, WHITE, BLACK)}
    load("benchmarks/suite.py").flag_black_boxes(rows, trials)
    name = FlagName.BLACK_BEATS_WHITE
    assert [each["flags"] for each in rows] == [[name] if is_flagged else [], [], [], []]
    assert [each["not_checked"] for each in rows] == [[], [name], [], []]  # an insider has no black box here
