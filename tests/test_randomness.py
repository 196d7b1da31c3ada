"""Streams repeat, do not meet, and give every rank its own rows."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitveil.randomness import NoiseSource, Rows, SeededSource, SystemSource, derive, stream

CPU = torch.device("cpu")
keys = st.lists(st.one_of(st.integers(), st.text(max_size=5)), max_size=3)


@given(st.integers(), keys, keys)
def test_streams_with_different_names_have_different_seeds(seed: int, a: list[int | str], b: list[int | str]) -> None:
    assert (derive(seed, *a) == derive(seed, *b)) == (a == b)


def test_a_number_and_its_text_name_different_streams() -> None:
    assert derive(0, 1) != derive(0, "1")


def test_the_same_stream_repeats() -> None:
    assert torch.equal(torch.randn(5, generator=stream(3, "a")), torch.randn(5, generator=stream(3, "a")))


def test_each_call_of_a_source_is_fresh_and_another_source_repeats_both() -> None:
    first, second = SeededSource(0, "noise"), SeededSource(0, "noise")
    a, b = first.normal((4, 2), device=CPU), first.normal((4, 2), device=CPU)
    assert not torch.equal(a, b)
    assert torch.equal(a, second.normal((4, 2), device=CPU))
    assert torch.equal(b, second.normal((4, 2), device=CPU))


@given(st.integers(1, 7), st.integers(1, 7), st.sampled_from(["normal", "uniform"]))
def test_rows_of_the_ranks_make_up_the_whole_batch(left: int, right: int, kind: str) -> None:
    total = left + right
    whole = getattr(SeededSource(1), kind)((total, 3), device=CPU)
    parts = [
        getattr(SeededSource(1, rows=Rows(first, total)), kind)((n, 3), device=CPU)
        for first, n in ((0, left), (left, right))
    ]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("source", [SeededSource(0), SystemSource()])
def test_normal_and_uniform_have_their_moments(source: NoiseSource) -> None:
    normal, uniform = source.normal((40_000,), device=CPU), source.uniform((40_000,), device=CPU)
    assert normal.mean().abs() < 0.03
    assert abs(normal.std() - 1) < 0.02
    assert abs(normal.pow(4).mean() - 3) < 0.25
    assert abs(uniform.mean() - 0.5) < 0.01
    assert 0 <= uniform.min() < uniform.max() < 1


def test_the_system_source_never_repeats() -> None:
    assert not torch.equal(SystemSource().normal((8,), device=CPU), SystemSource().normal((8,), device=CPU))


def test_the_default_dtype_does_not_change_a_stream() -> None:
    usual = SeededSource(0).normal((4,), device=CPU)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(SeededSource(0).normal((4,), device=CPU), usual)
    finally:
        torch.set_default_dtype(torch.float32)
