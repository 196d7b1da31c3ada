"""A drop-in for cross-attention whose keys and values live in a released memory.

    q_h = W_q,h x + b_q,h        head_h = memory.attend(q_h) at β = 1/√d_h        y = W_o [head_1 … head_H] + b_o

The private side projects its rows once with `project_rows` and releases them; the network then runs on the memory
alone. Gradients flow to the queries, to W_q and to W_o: fine-tuning on public queries is post-processing.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from splitveil.check import UsageError
from splitveil.private_attention.answer import Answer
from splitveil.private_attention.memory import PrivateKV


class HeadRows(NamedTuple):
    """Rows of every head, as a builder with `heads=H` takes them."""

    keys: Float[Tensor, "row head d"]
    values: Float[Tensor, "row head dv"]


def project_rows(attention: nn.MultiheadAttention, context: Float[Tensor, "row width"]) -> HeadRows:
    """Private context rows → keys and values of every head, by the attention's own W_k and W_v."""
    weights, biases = _projections(attention)
    keys = functional.linear(context, weights[1], biases[1])
    values = functional.linear(context, weights[2], biases[2])
    shape = (len(context), attention.num_heads, attention.head_dim)
    return HeadRows(keys.reshape(shape).detach(), values.reshape(shape).detach())


class PrivateCrossAttention(nn.Module):
    """`nn.MultiheadAttention` as cross-attention, over a released memory instead of rows.

    Called as the original is; `key`, `value` and masks are accepted and not looked at, and no attention weights are
    returned, since there are no rows to weigh. The memory is not part of the state dict: save it with
    `PrivateKV.save`.

    Guarantees: the output is a function of query, weights and memory only; it equals the original's with the kernel
    in place of the exponential, up to the memory's noise; gradients reach the query.
    """

    def __init__(self, attention: nn.MultiheadAttention, memory: PrivateKV) -> None:
        super().__init__()
        heads, width = attention.num_heads, attention.head_dim
        found = (memory.facts.heads, memory.facts.kernel.d, memory.facts.dv)
        if found != (heads, width, width):
            raise UsageError(
                f"the attention has {heads} heads of width {width}, the memory {found[0]} of {found[1]}, {found[2]}; "
                "build the memory from project_rows(attention, context)"
            )
        weights, biases = _projections(attention)
        self.q_weight = nn.Parameter(weights[0].detach().clone())
        self.q_bias = None if biases[0] is None else nn.Parameter(biases[0].detach().clone())
        self.out_proj = attention.out_proj
        self.batch_first = attention.batch_first
        self.num_heads, self.head_dim = heads, width
        self.memory = memory

    def heads(self, query: Float[Tensor, "*batch width"]) -> Answer:
        """Each head's answer with its standard error and flag: (…, H, d_h)."""
        q = functional.linear(query, self.q_weight, self.q_bias)
        q = q.reshape(*query.shape[:-1], self.num_heads, self.head_dim)
        q = q[..., 0, :] if self.num_heads == 1 else q
        return self.memory.attend(q, beta=1 / math.sqrt(self.head_dim))

    def forward(
        self,
        query: Float[Tensor, "*batch width"],
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Float[Tensor, "*batch width"], None]:
        """(output, None), as nn.MultiheadAttention with need_weights=False."""
        output = self.heads(query).output.reshape(*query.shape[:-1], self.num_heads * self.head_dim)
        return self.out_proj(output), None


def _projections(attention: nn.MultiheadAttention) -> tuple[list[Tensor], list[Tensor | None]]:
    """W_q, W_k, W_v and their biases, however the attention stores them."""
    if attention.bias_k is not None or attention.add_zero_attn:
        raise UsageError(
            "add_bias_kv and add_zero_attn add rows that a memory does not hold; build the attention without"
        )
    if attention._qkv_same_embed_dim:
        weights = list(attention.in_proj_weight.chunk(3))
    else:
        weights = [attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight]
    bias = attention.in_proj_bias
    return weights, [None] * 3 if bias is None else list(torch.chunk(bias, 3))
