import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from splitveil.private_attention.lattice import (
    FEATURE_CAP,
    VALUE_CAP,
    coordinate_bits,
    count_integer,
    enforce_cap,
    steady_exp,
    to_unit_ball,
    truncate_,
    value_integers,
)

WILD = [float("nan"), float("inf"), -float("inf"), 1e308, -1e308, 5e-324, 0.0, -0.0, 1.0, 3e38]


@given(st.lists(st.sampled_from(WILD) | st.floats(), min_size=3, max_size=3), st.floats(1e-3, 1e3))
@settings(max_examples=200, deadline=None)
def test_every_row_lands_in_the_unit_ball(row: list[float], radius: float) -> None:
    x = to_unit_ball(torch.tensor([row], dtype=torch.float64), radius)
    assert torch.isfinite(x).all()
    assert float(x.norm()) <= 1 + 2.0**-50


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_with_a_non_finite_number_counts_as_zero(bad: float) -> None:
    assert to_unit_ball(torch.tensor([[1.0, bad]]), 2.0).abs().sum() == 0


def test_a_huge_row_keeps_its_direction() -> None:
    x = to_unit_ball(torch.tensor([[3e300, 4e300]], dtype=torch.float64), 1.0)
    assert torch.allclose(x, torch.tensor([[0.6, 0.8]], dtype=torch.float64), atol=1e-6)


def test_a_row_within_the_radius_is_kept_to_the_fixed_point_step() -> None:
    x = torch.tensor([[0.3, -0.2, 0.1]], dtype=torch.float64)
    assert torch.allclose(to_unit_ball(x, 2.0) * 2.0, x, atol=2 * 2.0 ** -coordinate_bits(3))


def test_center_is_subtracted_before_clipping() -> None:
    row, center = torch.tensor([[10.0, 0.5]]), torch.tensor([10.0, 0.0], dtype=torch.float64)
    assert torch.allclose(to_unit_ball(row, 1.0, center), torch.tensor([[0.0, 0.5]], dtype=torch.float64))


def test_a_row_does_not_depend_on_its_neighbors_or_place() -> None:
    rows = torch.randn(257, 7) * 3
    whole = to_unit_ball(rows, 1.0)
    alone = torch.cat([to_unit_ball(rows[i : i + 1], 1.0) for i in range(len(rows))])
    turned = to_unit_ball(rows.flip(0), 1.0).flip(0)
    assert torch.equal(whole, alone)
    assert torch.equal(whole, turned)


def test_integers_over_the_cap_are_shortened_and_others_untouched() -> None:
    ints = torch.tensor([[2.0**20, 3.0], [1.0, 4.0]], dtype=torch.float64)
    out = enforce_cap(ints.clone(), FEATURE_CAP)
    assert out[:, 1].tolist() == [3.0, 4.0]
    assert sum(int(v) ** 2 for v in out[:, 0].tolist()) <= FEATURE_CAP
    assert float(out[0, 0]) >= 2**20 - 2


@given(st.floats(0.01, 100), st.floats(0.01, 100), st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_value_integers_never_exceed_their_cap(value_norm: float, count: float, dv: int) -> None:
    rows = torch.cat([torch.eye(dv), torch.ones(1, dv), -torch.ones(1, dv)]).double() * value_norm
    u = value_integers(to_unit_ball(rows, value_norm), value_norm, count)
    assert max(sum(int(x) ** 2 for x in row) for row in u.tolist()) <= VALUE_CAP
    assert set(u[:, -1].tolist()) == {float(count_integer(value_norm, count))}


@pytest.mark.parametrize("shape", [(7,), (3, 5)])
def test_truncation_is_toward_zero(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64) * 100
    assert torch.equal(truncate_(x.clone()), torch.trunc(x))
    assert torch.equal(truncate_(x.clone()[::2]), torch.trunc(x[::2]))


def test_steady_exp_is_right_and_the_same_wherever_a_number_lies() -> None:
    x = torch.linspace(-60, 60, 1001, dtype=torch.float64)
    wanted = torch.tensor([math.exp(v) for v in x.tolist()], dtype=torch.float64)
    assert float((steady_exp(x) / wanted - 1).abs().max()) < 1e-12
    assert torch.equal(steady_exp(x)[5:], steady_exp(x[5:]))
