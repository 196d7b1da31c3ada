"""The group norm that keeps a map's order in memory: torch's numbers, slopes included."""

import pytest
import torch
from torch.nn import functional as F

from splitveil.networks.norm import GroupNorm, keeping_order
from splitveil.randomness import stream

EPS = 1e-5


def drawn(dtype: torch.dtype, *, shift: float = 0.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = stream(0, "norm")
    h = (3 * torch.randn(5, 12, 6, 7, generator=rng, dtype=torch.float64) + shift).to(dtype)
    weight, bias = torch.randn(2, 12, generator=rng, dtype=torch.float64).to(torch.promote_types(dtype, torch.float32))
    return h.contiguous(memory_format=torch.channels_last), weight, bias


@pytest.mark.parametrize("groups", [1, 4, 12])
def test_it_is_torch_s_norm_and_so_are_its_slopes(groups):
    found, wanted = [], []
    for norm, kept in ((keeping_order, found), (F.group_norm, wanted)):
        inputs = [each.requires_grad_() for each in drawn(torch.float64, shift=2.0)]
        y = norm(inputs[0], groups, *inputs[1:], EPS)
        kept += [y, *torch.autograd.grad(y.sin().sum(), inputs)]
    for own, reference in zip(found, wanted, strict=True):
        torch.testing.assert_close(own, reference, rtol=1e-9, atol=1e-10)


def test_it_keeps_order_and_precision_under_autocast():
    h, weight, bias = drawn(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        y = keeping_order(h, 4, weight, bias, EPS)
    assert y.dtype == torch.bfloat16
    assert y.is_contiguous(memory_format=torch.channels_last)
    wanted = F.group_norm(h.float(), 4, weight, bias, EPS)
    assert (y.float() - wanted).abs().max() < 0.02 * wanted.abs().max()


def test_a_constant_map_is_its_bias():
    _, weight, bias = drawn(torch.float32)
    h = torch.full((2, 12, 4, 4), 0.3)
    found = keeping_order(h, 4, weight, bias, EPS)
    torch.testing.assert_close(found, bias[None, :, None, None].expand_as(h), rtol=0, atol=1e-3)


def test_on_a_cpu_it_is_torch_s_own():
    h, weight, bias = drawn(torch.float32)
    norm = GroupNorm(4, 12)
    with torch.no_grad():
        norm.weight.copy_(weight)
        norm.bias.copy_(bias)
    assert torch.equal(norm(h), F.group_norm(h, 4, weight, bias, EPS))
