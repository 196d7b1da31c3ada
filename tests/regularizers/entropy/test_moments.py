import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from references import entropy as slow
from splitveil.regularizers.entropy.members import assemble, total
from splitveil.regularizers.entropy.moments import moments


def _soft(seed: int, n: int, n_groups: int) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    z = torch.randn(n, 3, generator=rng, dtype=torch.float64)
    weight = torch.rand(n, n_groups, generator=rng, dtype=torch.float64)
    return z, weight, torch.randint(4, (n,), generator=rng)


@given(seed=st.integers(0, 999), n=st.integers(1, 12), n_groups=st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_moments_are_those_of_a_loop_and_ignore_order_and_scale(seed: int, n: int, n_groups: int) -> None:
    z, weight, row = _soft(seed, n, n_groups)
    index = row[:, None] * n_groups + torch.arange(n_groups)
    got = moments(z, weight, index, n_rows=4, n_groups=n_groups)
    for c in range(4):
        for k in range(n_groups):
            mine = row == c
            if not mine.any():
                assert float(got.mass[c, k]) == 0
                assert got.var[c, k].tolist() == [0, 0, 0]
                continue
            mean, var = slow.moments(z[mine], weight[mine, k])
            torch.testing.assert_close(got.mean[c, k], mean, rtol=0, atol=1e-12)
            torch.testing.assert_close(got.var[c, k], var, rtol=0, atol=1e-12)
    order = torch.randperm(n)
    again = moments(z[order], 7.5 * weight[order], index[order], n_rows=4, n_groups=n_groups)
    torch.testing.assert_close(again.var, got.var, rtol=0, atol=1e-12)
    torch.testing.assert_close(again.mass, 7.5 * got.mass)


@pytest.mark.parametrize("about", ["mean", "center"])
def test_gradients_in_points_and_weights_are_exact(about: str) -> None:
    z, weight, row = _soft(1, 7, 2)
    index = row[:, None] * 2 + torch.arange(2)
    center = torch.randn(4, 2, 3, dtype=torch.float64) if about == "center" else None

    def both(points: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        found = moments(points, w, index, n_rows=4, n_groups=2, center=center)
        return found.mean, found.var

    assert torch.autograd.gradcheck(both, (z.requires_grad_(), weight.requires_grad_()))


def test_a_hard_grouping_has_the_moments_of_its_one_hot_weights() -> None:
    z, _, row = _soft(2, 9, 1)
    group = torch.randint(3, (9,), generator=torch.Generator().manual_seed(0))
    hard = moments(z, torch.ones(9, 1).double(), (row * 3 + group)[:, None], n_rows=4, n_groups=3)
    one_hot = torch.nn.functional.one_hot(group, 3).double()
    soft = moments(z, one_hot, row[:, None] * 3 + torch.arange(3), n_rows=4, n_groups=3)
    torch.testing.assert_close(hard.var, soft.var)
    torch.testing.assert_close(hard.mass, soft.mass)


def test_far_from_the_origin_float32_keeps_the_variance() -> None:
    z = (1000 + torch.tensor([[0.0], [0.5], [1.0]])).float()
    got = moments(z, torch.ones(3, 1), torch.zeros(3, 1, dtype=torch.long), n_rows=1, n_groups=1)
    assert float(got.var) == pytest.approx(1 / 6, rel=1e-5)


@given(n_classes=st.integers(1, 40), n=st.integers(1, 12), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_rows_hold_the_classes_that_are_there(n_classes: int, n: int, seed: int) -> None:
    y = torch.randint(n_classes, (n,), generator=torch.Generator().manual_seed(seed))
    members = assemble(torch.zeros(n, 2), y, n_classes=n_classes, noise_var=1.0)
    assert members.n_rows == min(n_classes, n)
    assert torch.equal(members.label[members.row], y)
    there = members.count > 0
    assert sorted(members.label[there].tolist()) == sorted(set(y.tolist()))
    assert int(members.count.sum()) == n
    assert torch.equal(members.is_charged, (members.count > 1).float())


def test_total_sums_by_index() -> None:
    got = total(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([2, 0, 2]), 3)
    assert got.flatten().tolist() == [2, 0, 5]
