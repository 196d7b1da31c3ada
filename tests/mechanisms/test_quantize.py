"""Uniform quantization: few values, the nearest one, a straight-through gradient."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitveil.check import UsageError
from splitveil.mechanisms import Quantize


@given(levels=st.integers(2, 300), low=st.floats(-5, 0), width=st.floats(0.1, 10))
def test_every_value_goes_to_the_nearest_level(levels: int, low: float, width: float) -> None:
    high = low + width
    z = torch.linspace(low - 1, high + 1, 501).double()[None]
    sent = Quantize(levels=levels, low=low, high=high).send(z, ())
    grid = torch.linspace(low, high, levels, dtype=torch.float64)
    best = (z.clamp(low, high)[0, :, None] - grid).abs().amin(1)
    torch.testing.assert_close((sent - z.clamp(low, high)).abs()[0], best, rtol=0.0, atol=1e-9)


def test_no_more_values_than_levels_leave_the_client() -> None:
    z = torch.rand(8, 4096, requires_grad=True)
    for levels in (2, 16, 255):
        assert torch.unique(Quantize(levels=levels).send(z, ())).numel() == levels


def test_gradient_is_one_inside_the_range_and_zero_outside() -> None:
    z = torch.tensor([[-0.5, 0.1, 0.9, 1.5]], requires_grad=True)
    Quantize(levels=4).send(z, ()).sum().backward()
    assert torch.equal(z.grad, torch.tensor([[0.0, 1.0, 1.0, 0.0]]))


@pytest.mark.parametrize("options", [{"levels": 1}, {"levels": 4, "low": 1.0}, {"levels": 4, "high": float("inf")}])
def test_impossible_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="quantize"):
        Quantize(**options)
