"""Each flag: a case that must raise it and one that must not."""

from dataclasses import dataclass

import pytest

from splitveil.attacks import Health
from splitveil.evaluation import flags
from splitveil.evaluation.flags import FlagName
from splitveil.metrics import Interval


@dataclass(frozen=True)
class Floor:
    value: float
    side: str = "at_least"
    kind: str = "proved"


def around(mean: float, half: float = 0.001) -> Interval:
    return Interval(mean, mean - half, mean + half)


CASES = [
    (FlagName.STILL_FALLING, flags.still_falling, (Health(still_falling=True),), (Health(still_falling=False),)),
    (FlagName.OVERFITTED, flags.overfitted, (Health(0.004, 0.01),), (Health(0.006, 0.01),)),
    (FlagName.NO_BETTER_THAN_PRIOR, flags.no_better_than_prior, (around(0.0595), 0.06), (around(0.0585), 0.06)),
    (FlagName.FAILS_UNDEFENDED, flags.fails_undefended, (0.1,), (0.3,)),
    (
        FlagName.BLACK_BEATS_WHITE,
        flags.black_beats_white,
        (around(0.02), around(0.017)),
        (around(0.02), around(0.0185)),
    ),
    (FlagName.UNSTABLE, flags.unstable, ([0.010, 0.012],), ([0.010, 0.0105],)),
    (FlagName.NO_AVERAGING, flags.no_averaging, (True, [1, 1]), (True, [1, 16])),
    (FlagName.BELOW_BOUND, flags.below_bound, (around(0.01), [Floor(0.02)]), (around(0.01), [Floor(0.0105)])),
]


def test_every_flag_has_its_cases():
    assert {name for name, *_ in CASES} == set(FlagName)


@pytest.mark.parametrize(("name", "judge", "bad", "good"), CASES, ids=[case[0] for case in CASES])
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
        (flags.unstable, ([0.01],)),  # one seed
        (flags.no_averaging, (False, [1])),  # nothing to average
        (flags.below_bound, (around(0.01), [])),  # no bound
        (flags.below_bound, (around(0.01), [Floor(0.02, kind="heuristic")])),
        (flags.below_bound, (around(0.01), [Floor(0.02, side="at_most")])),
    ],
)
def test_what_cannot_be_judged_raises_nothing(judge, arguments):
    assert judge(*arguments) is None
