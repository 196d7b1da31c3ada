"""A bound carries its kind and assumptions, and survives JSON."""

from dataclasses import replace

import pytest

from splitveil.bounds import MSE, Bound, Kind, Side
from splitveil.check import UsageError

FLOOR = Bound(
    name="two points",
    quantity=MSE,
    value=0.1 + 0.2,
    side=Side.AT_LEAST,
    kind=Kind.SAMPLED,
    holds_if=("images are drawn alike", "σ > 0"),
    interval=(0.29, 0.31),
    releases=4,
)


@pytest.mark.parametrize("bound", [FLOOR, replace(FLOOR, kind=Kind.PROVED, interval=None, holds_if=(), unit="bits")])
def test_it_survives_json_unchanged(bound):
    again = Bound.from_json(bound.to_json())
    assert again == bound
    assert isinstance(again.side, Side)
    assert isinstance(again.kind, Kind)


def test_everything_needed_to_believe_it_is_printed():
    line = FLOOR.describe()
    for word in ("MSE ≥ 0.3 [0.29, 0.31]", "two points", "proved-up-to-sampling", "4 releases", *FLOOR.holds_if):
        assert word in line


def test_the_safe_end_claims_less():
    assert FLOOR.safe == 0.29
    assert replace(FLOOR, side=Side.AT_MOST).safe == 0.31
    assert replace(FLOOR, kind=Kind.PROVED, interval=None).safe == FLOOR.value


@pytest.mark.parametrize("kind", list(Kind))
def test_only_what_is_proved_about_images_judges_attacks(kind):
    bound = replace(FLOOR, kind=kind)
    assert bound.is_about_attacks is (kind in (Kind.PROVED, Kind.SAMPLED))
    assert not replace(bound, side=Side.AT_MOST).is_about_attacks
    assert not replace(bound, quantity="MSE on x + u").is_about_attacks


def test_what_was_estimated_needs_its_interval():
    with pytest.raises(UsageError, match="needs an interval"):
        replace(FLOOR, interval=None)


def test_a_word_that_is_none_is_refused():
    with pytest.raises(UsageError, match="kind of a bound 'prove' is not known; "):
        Bound.from_json(FLOOR.to_json().replace("proved-up-to-sampling", "prove"))
