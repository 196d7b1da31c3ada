"""Fewer bits as a factor on the error's floor, and never more than a comparison."""

import math
from dataclasses import replace

import pytest

from splitveil.bounds import Bound, Kind, Side, compare, comparison, comparisons
from splitveil.check import UsageError

BITS = Bound("information", "I(x; z_sent)", 300.0, Side.AT_MOST, Kind.SAMPLED, (), unit="bits", interval=(290.0, 310.0))


def test_the_factor_is_that_of_the_two_floors():
    d, entropy, step = 100, 700.0, 1 / 255

    def floor(bits: float) -> float:
        nats = (entropy - bits) * math.log(2)
        return step**2 * math.exp(2 * nats / d) / (2 * math.pi * math.e)

    assert compare(200.0, 300.0, d) == pytest.approx(floor(200.0) / floor(300.0), rel=1e-12)
    assert compare(200.0, 300.0, d) == pytest.approx(4.0)  # half a bit less for each pixel halves its range
    assert compare(300.0, 200.0, d) == pytest.approx(0.25)


def test_a_comparison_carries_its_doubts():
    fewer = replace(BITS, value=200.0, interval=(195.0, 205.0))
    found = comparison(fewer, BITS, d=784)
    assert found.kind is Kind.HEURISTIC
    assert not found.is_about_attacks
    assert found.holds_if
    low, high = found.interval
    assert low == compare(205.0, 290.0, 784) < found.value < high


def test_only_bounds_in_bits_of_as_many_releases_compare():
    with pytest.raises(UsageError, match="two information bounds"):
        comparison(replace(BITS, unit=""), BITS, d=784)
    with pytest.raises(UsageError, match="cannot be compared"):
        comparison(replace(BITS, releases=4), BITS, d=784)


def test_of_all_bounds_the_fewest_bits_of_as_many_releases_compare():
    fewer, other = replace(BITS, value=200.0), replace(BITS, unit="", value=1.0)
    mine = [BITS, fewer, other, replace(BITS, releases=4)]
    base = [replace(BITS, value=400.0), replace(BITS, value=500.0), replace(BITS, releases=16)]
    (found,) = comparisons(mine, base, d=784)
    assert found.releases == 1
    assert found.value == compare(200.0, 400.0, 784)
    assert comparisons(mine, [other], d=784) == ()
