"""Clipping: the norm bound under hostile input, and nothing else changed."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from splitveil.check import UsageError
from splitveil.mechanisms import Clip
from splitveil.mechanisms.clip import MARGIN

HOSTILE = st.sampled_from([math.nan, math.inf, -math.inf, 3.4e38, -3.4e38, 1e20, 1e-20, 1e-45, 0.0, 1.0, -3.0])
ROWS = st.lists(st.one_of(HOSTILE, st.floats(width=32)), min_size=1, max_size=40)


def clip(z: Tensor, *, radius: float, norm: int = 2) -> Tensor:
    return Clip(radius=radius, norm=norm).send(z, ())


@given(row=ROWS, power=st.integers(-6, 6), norm=st.sampled_from([1, 2]))
def test_norm_never_exceeds_the_radius_whatever_comes(row: list[float], power: int, norm: int) -> None:
    sent = clip(torch.tensor([row]), radius=10.0**power, norm=norm).double()
    assert float(sent.norm(p=norm)) <= 10.0**power


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("dim", [10_000, 1_000_000])
def test_norm_never_exceeds_the_radius_in_many_dimensions(norm: int, dim: int) -> None:
    z = torch.rand(2, dim) + 0.5
    for scale in (1.0, 1 / float(z[0].double().norm(p=norm))):
        assert (clip(z * scale, radius=1.0, norm=norm).double().norm(p=norm, dim=1) <= 1.0).all()


def test_a_sample_inside_the_ball_passes_bit_for_bit() -> None:
    z = torch.nn.functional.normalize(torch.randn(50, 12), dim=1) * (2.0 * (1 - 2 * MARGIN))
    assert torch.equal(clip(z, radius=2.0), z)


def test_a_sample_outside_keeps_its_direction_and_reaches_the_sphere() -> None:
    z = 5 * torch.randn(20, 3, 4, 4)
    sent = clip(z, radius=2.0)
    cosine = torch.cosine_similarity(sent.flatten(1), z.flatten(1))
    torch.testing.assert_close(cosine, torch.ones(20))
    torch.testing.assert_close(sent.flatten(1).norm(dim=1), torch.full((20,), 2.0), rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("norm", [1, 2])
def test_gradient_equals_finite_differences_inside_and_outside(norm: int) -> None:
    z = torch.randn(4, 5, dtype=torch.float64) * torch.tensor([0.1, 0.1, 4.0, 4.0])[:, None]
    assert torch.autograd.gradcheck(lambda z: clip(z, radius=2.0, norm=norm), z.requires_grad_())


@pytest.mark.parametrize("radius", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_radius_is_refused_in_one_line(radius: float) -> None:
    with pytest.raises(UsageError, match=r"^clip radius must be > 0( and finite)?, got [^\n]*$"):
        Clip(radius=radius)


def test_an_unknown_norm_is_refused() -> None:
    with pytest.raises(UsageError, match="norm must be 1 or 2, got 3"):
        Clip(radius=1.0, norm=3)
