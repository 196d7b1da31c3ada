"""Batches: a partition of the epoch, the same for the same seed, resumable, shared between ranks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from splitveil.check import UsageError
from splitveil.data import Batch, Part, batches, n_batches, sweep
from splitveil.randomness import Rows


def _part(n: int) -> Part:
    """Images whose pixels and labels tell their place."""
    place = torch.arange(n)
    return Part((place % 256).to(torch.uint8).reshape(n, 1, 1, 1).expand(n, 1, 2, 2).contiguous(), place)


def _same(one: list[Batch], other: list[Batch]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a.x, b.x) and torch.equal(a.index, b.index) and a.rows == b.rows
        for a, b in zip(one, other, strict=True)
    )


sizes = {"n": st.integers(1, 60), "size": st.integers(1, 20), "seed": st.integers(0, 99), "epoch": st.integers(0, 9)}


@settings(deadline=None, max_examples=50)
@given(**sizes)
def test_an_epoch_shows_every_image_once(n: int, size: int, seed: int, epoch: int) -> None:
    seen = list(batches(_part(n), size=size, seed=seed, epoch=epoch, drop_last=False))
    assert torch.cat([batch.index for batch in seen]).sort().values.tolist() == list(range(n))
    assert all(torch.equal(batch.y, batch.index) for batch in seen)
    assert all(torch.equal((batch.x[:, 0, 0, 0] * 255).round().long(), batch.index % 256) for batch in seen)


@settings(deadline=None, max_examples=50)
@given(**sizes, start=st.integers(0, 70))
def test_resuming_gives_the_tail_of_the_epoch(n: int, size: int, seed: int, epoch: int, start: int) -> None:
    part = _part(n)
    whole = list(batches(part, size=size, seed=seed, epoch=epoch, drop_last=False))
    tail = list(batches(part, size=size, seed=seed, epoch=epoch, drop_last=False, start=start))
    assert _same(whole[start:], tail)


@settings(deadline=None, max_examples=50)
@given(n=st.integers(12, 60), share=st.integers(1, 4), world=st.integers(1, 3), drop_last=st.booleans())
def test_ranks_hold_the_rows_of_the_one_process_batch(n: int, share: int, world: int, drop_last: bool) -> None:
    part, size = _part(n), share * world
    one = batches(part, size=size, seed=1, epoch=2, drop_last=drop_last)
    ranks = [batches(part, size=size, seed=1, epoch=2, drop_last=drop_last, rank=r, world=world) for r in range(world)]
    for whole, *pieces in zip(one, *ranks, strict=True):
        assert torch.equal(torch.cat([piece.index for piece in pieces]), whole.index)
        assert torch.equal(torch.cat([piece.x for piece in pieces]), whole.x)
        ends = [piece.rows.first + len(piece.x) for piece in pieces]
        assert [piece.rows for piece in pieces] == [Rows(first, len(whole.x)) for first in [0, *ends[:-1]]]


def test_orders_differ_between_seeds_and_between_epochs() -> None:
    first = [next(batches(_part(50), size=50, seed=s, epoch=e)).index.tolist() for s, e in [(0, 0), (0, 1), (1, 0)]]
    assert first[0] != first[1]
    assert first[0] != first[2]
    assert first[0] == next(batches(_part(50), size=50, seed=0, epoch=0)).index.tolist()


def test_order_is_golden() -> None:
    """torch.randperm(10, generator=stream(0, "order", 0)): another order would change every published number."""
    drawn = next(batches(_part(10), size=10, seed=0, epoch=0)).index
    assert drawn.tolist() == [8, 9, 3, 2, 7, 5, 0, 6, 4, 1]


def test_short_batch_is_dropped_only_when_asked() -> None:
    part = _part(10)
    assert [len(b.x) for b in batches(part, size=4, seed=0, epoch=0)] == [4, 4]
    assert [len(b.x) for b in batches(part, size=4, seed=0, epoch=0, drop_last=False)] == [4, 4, 2]
    assert n_batches(10, size=4) == 2
    assert n_batches(8, size=4, drop_last=False) == 2


def test_sweep_keeps_the_stored_order() -> None:
    swept = list(sweep(_part(7), 3))
    assert torch.cat([batch.index for batch in swept]).tolist() == list(range(7))
    assert [batch.rows for batch in swept] == [Rows(0, 3), Rows(0, 3), Rows(0, 1)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "batch size must be ≥ 1"),
        ({"size": 11}, "batch size 11 is larger than the part's 10 images"),
        ({"size": 5, "world": 2}, "batch size 5 must be a multiple of the 2 processes"),
        ({"size": 4, "rank": 2, "world": 2}, "rank 2"),
    ],
)
def test_impossible_batches_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        batches(_part(10), seed=0, epoch=0, **settings)
