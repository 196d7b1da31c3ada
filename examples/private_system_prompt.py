"""A decoder that reads a private system prompt through differentially private cross-attention.

The prompt's tokens (here 20,000: the rules and cases of a company) may not be reconstructed by whoever queries the
model. The layer's cross-attention is replaced by one over a released memory; the prompt itself is then no longer
needed at inference. A prompt of a few hundred tokens is too short to hide a token in and to be useful at once: its
answers are flagged.
"""

import torch
from torch import nn

from splitveil.private_attention import (
    Bounds,
    PolynomialFeatures,
    PrivacySpec,
    PrivateCrossAttention,
    PrivateKV,
    project_rows,
)

WIDTH, HEADS = 16, 2


def private_layer(layer: nn.TransformerDecoderLayer, prompt: torch.Tensor, epsilon: float) -> PrivateCrossAttention:
    """The cross-attention of `layer` over a private prompt, to be put in its place."""
    attention = layer.multihead_attn
    keys, values = project_rows(attention, prompt)
    public = project_rows(attention, torch.randn(2000, WIDTH))  # tokens that are no secret: they set the bounds
    width = WIDTH // HEADS
    bounds = Bounds(
        key_norm=float(public.keys.norm(dim=-1).quantile(0.95)),
        query_norm=float(public.keys.norm(dim=-1).max()),
        value_norm=float(public.values.norm(dim=-1).quantile(0.95)),
    )
    products = public.keys[:300].flatten(0, 1) @ public.keys[300:600].flatten(0, 1).T
    features = PolynomialFeatures(width, 2).fit_public(products, beta=width**-0.5)
    spec = PrivacySpec(epsilon, 1e-6)
    memory = PrivateKV.builder(spec, bounds, features, width, heads=HEADS).add(keys, values).release()
    return PrivateCrossAttention(attention, memory)


def main(tokens: int = 20_000, epsilon: float = 4.0) -> dict[str, float]:
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, dim_feedforward=32, dropout=0.0, batch_first=True).eval()
    prompt = torch.randn(tokens, WIDTH) + 0.5  # what makes this prompt different from others
    text = torch.randn(1, 12, WIDTH)
    with torch.no_grad():
        exact = layer(text, prompt[None])
        without = layer(text, torch.zeros(1, 1, WIDTH))
        layer.multihead_attn = private_layer(layer, prompt, epsilon)
        private = layer(text, torch.zeros(1, 1, WIDTH))  # the prompt is not passed any more
        flagged = layer.multihead_attn.heads(text).flagged.double().mean()
    return {
        "tokens": tokens,
        "epsilon": epsilon,
        "error": float((private - exact).norm() / (exact - without).norm()),  # 1: as if there were no prompt
        "flagged": float(flagged),
    }


if __name__ == "__main__":
    for tokens in (20_000, 300):
        print(main(tokens))
