import copy

import pytest
import torch
from torch import nn

from splitveil.check import UsageError
from splitveil.private_attention import (
    Bounds,
    PolynomialFeatures,
    PrivacySpec,
    PrivateCrossAttention,
    PrivateKV,
    project_rows,
)

WIDTH, HEADS = 12, 3


def attention(**options) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    return nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options)


def memory_of(original: nn.MultiheadAttention, context: torch.Tensor, *, epsilon: float = 1e9) -> PrivateKV:
    rows = project_rows(original, context)
    bounds = Bounds(float(rows.keys.norm(dim=-1).max()), 4.0, float(rows.values.norm(dim=-1).max()))
    features = PolynomialFeatures(WIDTH // HEADS, 8).taylor((WIDTH / HEADS) ** -0.5)
    spec = PrivacySpec(epsilon, 1e-6)
    b = PrivateKV.builder(spec, bounds, features, WIDTH // HEADS, heads=original.num_heads, seed=1)
    return b.add(*rows).release()


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 7, "vdim": 7}])
def test_with_little_noise_it_is_the_original(options: dict) -> None:
    original = attention(**options)
    context = torch.randn(400, options.get("kdim", WIDTH))
    private = PrivateCrossAttention(original, memory_of(original, context))
    x = torch.randn(2, 5, WIDTH)
    wanted, _ = original(x, context.expand(2, -1, -1), context.expand(2, -1, -1), need_weights=False)
    got, weights = private(x, None, None)
    assert weights is None
    assert torch.allclose(got, wanted, atol=5e-3)


def test_one_head_works_too() -> None:
    original = nn.MultiheadAttention(4, 1, batch_first=True)
    context = torch.randn(300, 4)
    rows = project_rows(original, context)
    b = PrivateKV.builder(PrivacySpec(1e5, 1e-6), Bounds(4, 4, 4), PolynomialFeatures(4, 6).taylor(0.5), 4, seed=1)
    private = PrivateCrossAttention(original, b.add(*rows).release())
    x = torch.randn(2, 3, 4)
    wanted, _ = original(x, context.expand(2, -1, -1), context.expand(2, -1, -1), need_weights=False)
    assert torch.allclose(private(x)[0], wanted, atol=2e-2)


def test_gradients_reach_query_and_projections_but_not_the_memory() -> None:
    original = attention()
    memory = memory_of(original, torch.randn(200, WIDTH))
    before = memory.moments.clone()
    private = PrivateCrossAttention(original, memory)
    x = torch.randn(2, 5, WIDTH, requires_grad=True)
    private(x)[0].square().sum().backward()
    for tensor in (x, private.q_weight, private.out_proj.weight):
        assert tensor.grad is not None
        assert tensor.grad.abs().sum() > 0
    assert torch.equal(memory.moments, before)


def test_it_takes_the_place_of_cross_attention_in_a_decoder_layer() -> None:
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, dim_feedforward=16, batch_first=True, dropout=0.0).eval()
    context, x = torch.randn(300, WIDTH), torch.randn(2, 4, WIDTH)
    wanted = layer(x, context.expand(2, -1, -1))
    layer.multihead_attn = PrivateCrossAttention(layer.multihead_attn, memory_of(layer.multihead_attn, context))
    got = layer(x, torch.full((2, 1, WIDTH), float("nan")))  # whatever is passed as context is not looked at
    assert torch.allclose(got, wanted, atol=2e-2)


def test_fine_tuning_on_public_queries_lowers_the_loss() -> None:
    original = attention()
    private = PrivateCrossAttention(original, memory_of(original, torch.randn(300, WIDTH), epsilon=50.0))
    x, goal = torch.randn(8, 4, WIDTH), torch.randn(8, 4, WIDTH)
    optimizer = torch.optim.Adam(private.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        loss = (private(x)[0] - goal).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.98 * losses[0]


def test_the_memory_is_not_in_the_state_dict_and_survives_a_copy() -> None:
    original = attention()
    private = PrivateCrossAttention(original, memory_of(original, torch.randn(50, WIDTH)))
    assert set(private.state_dict()) == {"q_weight", "q_bias", "out_proj.weight", "out_proj.bias"}
    assert copy.deepcopy(private).memory is private.memory


def test_standard_errors_of_heads_can_be_looked_at() -> None:
    original = attention()
    private = PrivateCrossAttention(original, memory_of(original, torch.randn(50, WIDTH), epsilon=1.0))
    answer = private.heads(torch.randn(2, 5, WIDTH))
    assert answer.stderr.shape == (2, 5, HEADS, WIDTH // HEADS)
    assert answer.flagged.all()  # fifty rows at ε = 1 carry no signal


def test_what_does_not_fit_is_told() -> None:
    original = attention()
    memory = memory_of(original, torch.randn(20, WIDTH))
    with pytest.raises(UsageError, match="2 heads of width 6"):
        PrivateCrossAttention(nn.MultiheadAttention(WIDTH, 2), memory)
    with pytest.raises(UsageError, match="add_zero_attn"):
        project_rows(nn.MultiheadAttention(WIDTH, HEADS, add_zero_attn=True), torch.randn(3, WIDTH))
