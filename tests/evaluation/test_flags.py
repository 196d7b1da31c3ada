"""Each flag: a case that must raise it and one that must not."""

from dataclasses import replace

import pytest

from splitveil.attacks import Health
from splitveil.bounds import MSE, Bound, Kind, Side
from splitveil.evaluation import flags
from splitveil.evaluation.flags import FlagName
from splitveil.metrics import Interval


def floor(value: float, *, side: Side = Side.AT_LEAST, kind: Kind = Kind.PROVED, releases: int = 1) -> Bound:
    return Bound("test", MSE, value, side, kind, (), releases=releases)


def around(mean: float, half: float = 0.001) -> Interval:
    return Interval(mean, mean - half, mean + half)


CASES = [
    (FlagName.STILL_FALLING, flags.still_falling, (Health(still_falling=True),), (Health(still_falling=False),)),
    (FlagName.STILL_FALLING, flags.judge_cut, (Health(still_falling=True),), (Health(steps=9),)),
    (
        FlagName.STILL_FALLING,
        flags.could_pass,
        (around(0.02), {"far": around(0.05), "near": around(0.0299)}),
        (around(0.02), {"far": around(0.05), "near": around(0.0301)}),
    ),
    (FlagName.OVERFITTED, flags.overfitted, (Health(0.004, 0.01),), (Health(0.006, 0.01),)),
    (FlagName.NO_BETTER_THAN_PRIOR, flags.no_better_than_prior, (around(0.0595), 0.06), (around(0.0585), 0.06)),
    (FlagName.FAILS_UNDEFENDED, flags.fails_undefended, (0.1,), (0.3,)),
    (
        FlagName.BLACK_BEATS_WHITE,
        flags.black_beats_white,
        (around(0.02), {"weak": around(0.03), "strong": around(0.017)}),
        (around(0.02), {"weak": around(0.03), "strong": around(0.0185)}),
    ),
    (FlagName.UNSTABLE, flags.unstable, ([0.010, 0.012],), ([0.010, 0.0105],)),
    (FlagName.NO_AVERAGING, flags.no_averaging, (True, [1, 1]), (True, [1, 16])),
    (FlagName.BELOW_BOUND, flags.below_bound, (around(0.01), [floor(0.02)]), (around(0.01), [floor(0.0105)])),
]


def test_every_flag_has_its_cases():
    assert {name for name, *_ in CASES} == set(FlagName)


@pytest.mark.parametrize(("name", "judge", "bad", "good"), CASES, ids=[case[1].__name__ for case in CASES])
def test_a_flag_is_raised_where_it_must_and_only_there(name, judge, bad, good):
    raised = judge(*bad)
    assert raised is not None
    assert raised.name is name
    assert raised.reason
    assert judge(*good) is None


@pytest.mark.parametrize(
    ("judge", "arguments"),
    [
        (flags.overfitted, (Health(),)),  # an attack that fits nothing
        (flags.fails_undefended, (None,)),  # no undefended client was attacked
        (flags.black_beats_white, (around(0.02), {})),  # no rival
        (flags.unstable, ([0.01],)),  # one seed
        (flags.no_averaging, (False, [1])),  # nothing to average
        (flags.below_bound, (around(0.01), [])),  # no bound
        (flags.below_bound, (around(0.01), [floor(0.02, kind=Kind.HEURISTIC)])),
        (flags.below_bound, (around(0.01), [floor(0.02, kind=Kind.ASYMPTOTIC)])),
        (flags.below_bound, (around(0.01), [floor(0.02, side=Side.AT_MOST)])),
        (flags.below_bound, (around(0.01), [replace(floor(0.02), quantity="MSE on x + u")])),
    ],
)
def test_what_cannot_be_judged_raises_nothing(judge, arguments):
    assert judge(*arguments) is None


def test_a_bound_that_was_estimated_judges_by_the_end_that_claims_less():
    sampled = replace(floor(0.02), kind=Kind.SAMPLED, interval=(0.0105, 0.03))
    assert flags.below_bound(around(0.01), [sampled]) is None
    assert flags.below_bound(around(0.01), [replace(sampled, interval=(0.0115, 0.03))]) is not None


def test_a_bound_for_many_releases_judges_attacks_that_saw_fewer_but_not_more():
    many = floor(0.02, releases=4)
    for releases, is_raised in ((1, True), (4, True), (16, False)):
        assert (flags.below_bound(around(0.01), [many], releases=releases) is not None) is is_raised


def test_a_floor_of_zero_judges_nobody():
    assert not flags.judges(floor(0.0), 1)
    assert flags.judges(floor(1e-9), 1)


def test_an_attack_that_knows_the_label_is_judged_by_bounds_that_allow_for_it():
    allows, assumes = replace(floor(0.02), label_known=True), floor(0.03)
    raised = flags.below_bound(around(0.01), [allows, assumes], label_known=True)
    assert raised is not None
    assert "0.02" in raised.reason
    assert flags.below_bound(around(0.01), [assumes], label_known=True) is None


def test_the_black_box_that_did_best_is_named_with_what_to_do():
    raised = flags.black_beats_white(around(0.02), {"good": around(0.015), "best": around(0.01), "weak": around(0.03)})
    assert raised is not None
    assert raised.reason.startswith("best knows less")
    assert "understates what leaks" in raised.reason
    assert "go by the black box" in raised.reason
