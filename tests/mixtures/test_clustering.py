import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from torch import Tensor

from references import mixtures as slow
from splitveil.mixtures import kmeans
from splitveil.mixtures.clustering import _draw, _seed_once
from splitveil.mixtures.tiles import lay_out


def _rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _world(seed: int, n: int = 600, dim: int = 8, n_classes: int = 3) -> tuple[Tensor, Tensor]:
    rng = _rng(seed)
    labels = torch.randint(n_classes, (n,), generator=rng)
    sub = torch.randint(4, (n,), generator=rng)
    center = 2 * torch.randn(n_classes, 4, dim, generator=rng, dtype=torch.float64)
    return center[labels, sub] + torch.randn(n, dim, generator=rng, dtype=torch.float64), labels


@pytest.mark.parametrize("seed", range(4))
def test_inertia_is_that_of_scikit_learn_or_better(seed: int) -> None:
    points, labels = _world(seed)
    ours = kmeans(points, labels, n_classes=3, n_groups=4, generator=_rng(seed), tolerance=1e-7)
    theirs = sum(KMeans(4, n_init=3, random_state=seed).fit(points[labels == c].numpy()).inertia_ for c in range(3))
    assert float(ours.inertia.sum()) <= theirs * (1 + 1e-3)


def test_reported_inertia_weights_and_variances_are_those_of_the_assignment() -> None:
    points, labels = _world(0)
    found = kmeans(points, labels, n_classes=3, n_groups=4, generator=_rng())
    torch.testing.assert_close(found.inertia, slow.inertia(points, labels, found.center))
    for c in range(3):
        for k in range(4):
            mine = points[(labels == c) & (found.assignment == k)]
            assert float(found.weight[c, k]) == pytest.approx(len(mine) / int((labels == c).sum()))
            torch.testing.assert_close(found.var[c, k], (mine - found.center[c, k]).square().mean())


@given(seed=st.integers(0, 999), n_groups=st.integers(1, 5), sizes=st.lists(st.integers(0, 12), min_size=2, max_size=4))
@settings(max_examples=30, deadline=None)
def test_more_rounds_never_raise_the_inertia(seed: int, n_groups: int, sizes: list[int]) -> None:
    sizes = [*sizes, 3]
    labels = torch.cat([torch.full((n,), c) for c, n in enumerate(sizes)])
    points = torch.randn(len(labels), 3, generator=_rng(seed), dtype=torch.float64)
    start = torch.randn(len(sizes), n_groups, 3, generator=_rng(seed + 1), dtype=torch.float64)
    before = float(slow.inertia(points, labels, start).sum())
    for rounds in (1, 2, 5):
        found = kmeans(
            points, labels, n_classes=len(sizes), n_groups=n_groups, generator=_rng(), start=start, max_rounds=rounds
        )
        now = float(found.inertia.sum())
        assert now <= before + 1e-9
        before = now


def test_a_warm_start_at_the_optimum_stays_there() -> None:
    points, labels = _world(1)
    first = kmeans(points, labels, n_classes=3, n_groups=4, generator=_rng(), tolerance=0.0)
    again = kmeans(points, labels, n_classes=3, n_groups=4, generator=_rng(9), start=first.center)
    assert again.n_rounds == 1
    torch.testing.assert_close(again.center, first.center)


def test_empty_groups_are_put_on_far_points() -> None:
    points = torch.tensor([[0.0], [0.1], [5.0], [5.1], [20.0]])
    start = torch.tensor([[[0.0], [900.0], [901.0]]])
    found = kmeans(points, torch.zeros(5, dtype=torch.long), n_classes=1, n_groups=3, generator=_rng(), start=start)
    assert sorted(round(float(m), 2) for m in found.center.flatten()) == [0.05, 5.05, 20.0]


def test_a_class_with_no_more_points_than_groups_has_inertia_zero() -> None:
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 2.0], [3.0, 1.0]])
    found = kmeans(points, torch.tensor([0, 0, 0, 2]), n_classes=3, n_groups=5, generator=_rng())
    assert found.inertia.tolist() == [0.0, 0.0, 0.0]
    assert found.weight[1].sum() == 0


def test_a_far_origin_does_not_spoil_float32() -> None:
    points, labels = _world(2)
    near = kmeans(points.float(), labels, n_classes=3, n_groups=4, generator=_rng())
    far = kmeans((points + 1000).float(), labels, n_classes=3, n_groups=4, generator=_rng())
    assert float(far.inertia.sum()) == pytest.approx(float(near.inertia.sum()), rel=1e-2)


def test_the_same_generator_gives_the_same_clusters() -> None:
    points, labels = _world(3)
    a, b = (kmeans(points, labels, n_classes=3, n_groups=4, generator=_rng(5)).center for _ in range(2))
    assert torch.equal(a, b)


def test_seeds_are_drawn_in_proportion_to_their_rate() -> None:
    labels = torch.tensor([0, 1, 0, 1, 0])
    tiles = lay_out(torch.arange(5.0)[:, None], labels, 2)
    rate = tiles.to_slots(torch.tensor([1.0, 0.0, 2.0, 5.0, 7.0])) * tiles.real
    drawn = _draw(tiles, rate, 20_000, _rng())[..., 0]
    share = torch.stack([(drawn == i).float().mean(1) for i in range(5)], 1)
    want = torch.tensor([[0.1, 0, 0.2, 0, 0.7], [0, 0, 0, 1, 0]])
    torch.testing.assert_close(share, want, atol=0.015, rtol=0)


def test_points_of_seed_weight_zero_are_no_seeds() -> None:
    points = torch.tensor([[0.0], [1.0], [50.0]]).repeat(20, 1)
    weight = torch.tensor([1.0, 1.0, 0.0]).repeat(20)
    tiles = lay_out(points, torch.zeros(60, dtype=torch.long), 1).about(torch.zeros(1, 1))
    seeds = _seed_once(tiles, tiles.to_slots(weight) * tiles.real, 2, _rng())
    assert sorted(seeds.flatten().tolist()) == [0.0, 1.0]
