import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from splitveil.check import UsageError
from splitveil.mixtures.tiles import lay_out, one_hot, sample


@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(sum), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_every_point_lies_once_in_a_tile_of_its_class(counts: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    labels = torch.cat([torch.full((n,), c) for c, n in enumerate(counts)])[torch.randperm(sum(counts))]
    points = torch.randn(len(labels), 3)
    tiles = lay_out(points, labels, len(counts))
    assert int(tiles.real.sum()) == len(points)
    assert torch.equal(tiles.to_points(tiles.label[:, None].expand_as(tiles.index)), labels)
    assert torch.equal(tiles.to_points(tiles.index), torch.arange(len(points)))
    assert torch.equal(tiles.to_points(tiles.to_slots(points[:, 0])), points[:, 0])
    want = torch.stack([points[labels == c].sum(0) / max(n, 1) for c, n in enumerate(counts)])
    torch.testing.assert_close(tiles.class_mean(), want)


def test_padding_is_less_than_one_tile_a_class() -> None:
    labels = torch.tensor([0] * 1000 + [1] * 3 + [3] * 129)
    tiles = lay_out(torch.randn(len(labels), 2), labels, 5)
    assert tiles.real.numel() - len(labels) < 3 * tiles.real.shape[1]


@pytest.mark.parametrize("most", [0, 1 << 30])
def test_points_are_read_about_their_class(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splitveil.mixtures.tiles.MOST_LAID", most)
    points, labels = torch.randn(20, 4), torch.arange(20) % 3
    tiles = lay_out(points, labels, 3)
    moved = tiles.about(tiles.class_mean())
    assert (moved.laid is None) == (most == 0)
    torch.testing.assert_close(moved.class_mean(), torch.zeros(3, 4), atol=1e-6, rtol=0)
    for part in moved.parts():
        own = part.points + tiles.class_mean()[part.label][:, None]
        want = points[moved.index[part.where]]
        torch.testing.assert_close(own * part.real[..., None], want * part.real[..., None])


def test_no_points_is_a_callers_mistake() -> None:
    with pytest.raises(UsageError, match="no points"):
        lay_out(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), 2)


def test_sample_takes_at_most_so_many_of_every_class() -> None:
    labels = torch.tensor([0] * 50 + [2] * 3)
    kept = sample(labels, 7, torch.Generator().manual_seed(0))
    assert torch.bincount(labels[kept]).tolist() == [7, 0, 3]
    assert len(kept.unique()) == len(kept)


def test_one_hot_leaves_padding_out() -> None:
    hot = one_hot(torch.tensor([[0, 1, 0]]), 2, torch.tensor([[1.0, 1.0, 0.0]]))
    assert hot.tolist() == [[[1, 0], [0, 1], [0, 0]]]
