"""Dropout and top-k: which coordinates survive."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitveil.check import UsageError
from splitveil.mechanisms import Dropout, TopK
from splitveil.randomness import SeededSource


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.7])
def test_dropout_zeroes_the_stated_share_and_rescales_nothing(rate: float) -> None:
    z = torch.rand(10, 5000) + 1
    sent = Dropout(rate=rate)(z, source=SeededSource(0))
    assert float((sent == 0).double().mean()) == pytest.approx(rate, abs=0.01)
    assert torch.equal(sent[sent != 0], z[sent != 0])


def test_dropout_acts_in_evaluation_too() -> None:
    mechanism = Dropout(rate=0.5).eval()
    assert (mechanism(torch.ones(4, 100), source=SeededSource(0)) == 0).any()


def test_dropout_removes_what_is_not_finite() -> None:
    z = torch.full((1, 1000), float("inf"))
    sent = Dropout(rate=0.5)(z, source=SeededSource(0))
    assert ((sent == 0) | (sent == float("inf"))).all()
    assert (sent == 0).any()


@given(st.integers(1, 40), st.integers(1, 30), st.integers(0, 1000))
def test_top_k_keeps_exactly_the_largest(dim: int, keep: int, seed: int) -> None:
    z = torch.randn(3, dim, generator=torch.Generator().manual_seed(seed))
    sent = TopK(keep=keep).send(z, ())
    for row, out in zip(z, sent, strict=True):
        order = sorted(range(dim), key=lambda i: -abs(float(row[i])))[:keep]
        expected = torch.zeros(dim)
        expected[order] = row[order]
        assert torch.equal(out, expected)


def test_top_k_keeps_no_more_where_all_are_equal() -> None:
    assert int((TopK(keep=3).send(torch.ones(2, 5, 2, 2), ()) != 0).sum()) == 6


@pytest.mark.parametrize(
    ("keep", "dim", "count"), [(0.25, 16, 4), (0.01, 16, 1), (0.3, 10, 3), (5, 16, 5), (99, 16, 16)]
)
def test_a_fraction_is_rounded_up_and_a_count_capped(keep: float, dim: int, count: int) -> None:
    assert TopK(keep=keep).count(dim) == count


@pytest.mark.parametrize("keep", [0, -1, 1.5, 0.0, float("nan"), float("inf")])
def test_an_impossible_keep_is_refused(keep: float) -> None:
    with pytest.raises(UsageError, match="keep must be a fraction in"):
        TopK(keep=keep)


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_an_impossible_rate_is_refused(rate: float) -> None:
    with pytest.raises(UsageError, match="dropout rate must lie in"):
        Dropout(rate=rate)
