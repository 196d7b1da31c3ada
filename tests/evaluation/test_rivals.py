"""Who may beat whom: black boxes against white boxes, flagged where they do and told where nobody could."""

from dataclasses import dataclass, replace

import pytest
import torch

from splitveil.attacks import Attack, Averaged, Box, Health, Inverter, Need, OptimizationAttack, Ridge, Threat
from splitveil.evaluation import Result, Suite, Trial, evaluate
from splitveil.evaluation.flags import FlagName
from splitveil.evaluation.rivals import rivals, uses_client
from worlds.evaluations import CONV, ROLES, WORLD

SEARCH = Trial(OptimizationAttack(), Threat())
BLACK = Trial(Ridge(), Threat(Box.BLACK))
FEW = Trial(Ridge(), Threat(Box.BLACK, queries=300))


class Gray(Inverter):
    health = Health()

    def __call__(self, seen):
        return torch.full((seen.z_sent.shape[1], 1, 12, 12), 0.5)


@dataclass(frozen=True)
class Search(Attack):
    """Holds the client, and does as well as least squares or nothing at all with it."""

    is_misled: bool

    name = "search"
    needs = frozenset({Need.PAIRS, Need.CLIENT})
    hears_all = True

    def _fit(self, known, course) -> Inverter:
        return Gray() if self.is_misled else Ridge().fit(known, seed=course.seed)


def flagged(result: Result) -> set[str]:
    return {each.name for each in result.attacks for flag in each.flags if flag.name is FlagName.BLACK_BEATS_WHITE}


@pytest.mark.parametrize(
    "black",
    [
        replace(BLACK, threat=replace(BLACK.threat, insider=True)),
        Trial(Averaged(Ridge(), 4), Threat(Box.BLACK, releases=4)),
        replace(BLACK, threat=replace(BLACK.threat, label_known=True)),
        replace(BLACK, threat=replace(BLACK.threat, head_known=True)),
        Trial(Ridge(), Threat()),
    ],
    ids=lambda trial: trial.name,
)
def test_who_stands_elsewhere_or_knows_more_is_no_rival(black):
    assert rivals(SEARCH, [SEARCH, black]) == []


def test_a_search_is_measured_against_every_black_box_of_its_kind():
    assert rivals(SEARCH, [SEARCH, BLACK, FEW, Trial(CONV, Threat(Box.BLACK))]) == [
        BLACK,
        FEW,
        Trial(CONV, Threat(Box.BLACK)),
    ]
    many = replace(SEARCH, threat=Threat(releases=4))
    mean = Trial(Averaged(Ridge(), 4), Threat(Box.BLACK, releases=4))
    assert rivals(many, [BLACK, mean]) == [mean]


def test_what_does_not_use_the_client_is_measured_against_itself_alone_and_never_against_its_copy():
    white = Trial(Ridge(), Threat())
    assert uses_client(SEARCH)
    assert not uses_client(white)
    assert rivals(white, [white, BLACK, FEW, Trial(CONV, Threat(Box.BLACK, queries=300))]) == [FEW]


@pytest.mark.parametrize("is_misled", [True, False])
def test_a_search_that_a_black_box_beats_is_flagged_by_its_name(is_misled):
    suite = Suite("both", (Trial(Search(is_misled), Threat()), Trial(Ridge(), Threat()), BLACK))
    found = evaluate(replace(WORLD, noise_std=0.02).client(), suite, ROLES)
    assert flagged(found) == ({"search (white-box outsider)"} if is_misled else set())
    assert FlagName.BLACK_BEATS_WHITE not in found.not_checked
    if is_misled:
        (flag,) = (flag for flag in found.attacks[0].flags if flag.name is FlagName.BLACK_BEATS_WHITE)
        assert "ridge (black-box outsider) knows less" in flag.reason


@pytest.mark.parametrize(
    "trials",
    [
        (Trial(Ridge(), Threat()), BLACK),  # a copy
        (Trial(Search(is_misled=True), Threat()), Trial(Ridge(), Threat())),  # no black box
        (Trial(Search(is_misled=True), Threat(insider=True)), BLACK),  # of another side
    ],
)
def test_without_an_independent_rival_the_check_is_not_made(trials):
    found = evaluate(replace(WORLD, noise_std=0.02).client(), Suite("alone", trials), ROLES)
    assert FlagName.BLACK_BEATS_WHITE in found.not_checked
    assert not flagged(found)


def test_a_search_that_alone_has_no_rival_is_named():
    search = Search(is_misled=False)
    suite = Suite("some", (Trial(search, Threat()), Trial(search, Threat(releases=4)), BLACK))
    found = evaluate(WORLD.client(), suite, ROLES)
    assert f"{FlagName.BLACK_BEATS_WHITE} (search (white-box outsider, 4 releases))" in found.not_checked
    assert FlagName.BLACK_BEATS_WHITE not in found.not_checked
