"""Slow, obvious conditional-entropy surrogates: one class, one group, one member at a time. Gradients by autograd."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Memberships = Callable[[int, Tensor], tuple[Tensor, Tensor | None]]  # (class, its members) → (weights, centers)


def moments(z: Tensor, weight: Tensor, center: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean and variance of one group."""
    share = weight / weight.sum()
    mean = sum((s * x for s, x in zip(share, z, strict=True)), torch.zeros_like(z[0])) if center is None else center
    var = sum((s * (x - mean) ** 2 for s, x in zip(share, z, strict=True)), torch.zeros_like(z[0]))
    return mean, var


def curve(
    form: str, v: Tensor, *, noise_var: float, tau: float, floor: float, sharpness: float, margin: float
) -> Tensor:
    """The four hinges, one variance at a time."""
    if form == "information":
        return 0.5 * torch.log(1 + v / noise_var)
    if form == "linear":
        return v
    rise = torch.log(v + floor) - math.log(tau + floor)
    if form == "log":
        return torch.clamp(rise, min=0)
    return torch.log(1 + torch.exp(sharpness * (rise - margin))) / sharpness


def entropy(p: Tensor) -> Tensor:
    """−Σ p log p with 0 log 0 = 0."""
    return -sum((x * torch.log(x) for x in p if float(x.detach()) > 0), torch.zeros((), dtype=p.dtype))


def class_value(
    z: Tensor, r: Tensor, center: Tensor | None, charge: Callable[[Tensor], Tensor], *, adds_membership: bool
) -> Tensor:
    """Σ_k π_k · charge(v_k), plus (H(π) − mean H(r))/D where asked."""
    total = torch.zeros((), dtype=z.dtype)
    pi = r.sum(0) / len(z)
    for k in range(r.shape[1]):
        if float(r[:, k].detach().sum()) > 0:
            _, var = moments(z, r[:, k], None if center is None else center[k])
            total = total + pi[k] * charge(var)
    if adds_membership:
        doubt = sum((entropy(row) for row in r), torch.zeros((), dtype=z.dtype)) / len(z)
        total = total + (entropy(pi) - doubt) / z.shape[1]
    return total


def penalty(z: Tensor, y: Tensor, n_classes: int, value: Callable[[int, Tensor], Tensor]) -> Tensor:
    """Σ_c (M_c/B) · value of the class, classes of one member left out."""
    total = torch.zeros((), dtype=z.dtype)
    for c in range(n_classes):
        mine = z[y == c]
        if len(mine) > 1:
            total = total + len(mine) / len(z) * value(c, mine)
    return total


def dimension_gate(var: Tensor, layers: list[tuple[Tensor, Tensor]]) -> Tensor:
    """sigmoid(W₂ relu(W₁ LN(log v) + b₁) + b₂) of one group."""
    log = torch.log(var + 1e-8)
    normed = (log - log.mean()) / torch.sqrt(log.var(unbiased=False) + 1e-5)
    (w1, b1), (w2, b2) = layers
    return 1 / (1 + torch.exp(-(w2 @ torch.relu(w1 @ normed + b1) + b2)))


def snr_gate(mean: Tensor, var: Tensor, *, sharpness: float, level: float, floor: float) -> Tensor:
    """sigmoid(κ(v/(μ² + ε) − τ_snr)) of one group."""
    return 1 / (1 + torch.exp(-sharpness * (var / (mean**2 + floor) - level)))


def running_share(shares: list[list[float]], momentum: float = 0.99) -> tuple[float, float]:
    """a = 4/std and b = mean − std of the shares of the classes that were there, followed over steps."""
    mean = square = 0.0
    for i, present in enumerate(shares):
        now = sum(present) / len(present), sum(s * s for s in present) / len(present)
        mean = now[0] if i == 0 else momentum * mean + (1 - momentum) * now[0]
        square = now[1] if i == 0 else momentum * square + (1 - momentum) * now[1]
    std = math.sqrt(max(square - mean**2, 1e-12))
    return 4 / std, mean - std


def nearest(z: Tensor, center: Tensor) -> Tensor:
    """Hard memberships in the nearest center."""
    r = torch.zeros(len(z), len(center), dtype=z.dtype)
    for m, x in enumerate(z.detach()):
        r[m, min(range(len(center)), key=lambda k: float((x - center[k]).square().sum()))] = 1.0
    return r


def posterior(z: Tensor, log_weight: Tensor, mean: Tensor, cov: Tensor) -> Tensor:
    """Memberships under a mixture with full covariances `cov`."""
    rows = []
    for x in z:
        logs = [
            log_weight[k] + torch.distributions.MultivariateNormal(mean[k], cov[k]).log_prob(x)
            for k in range(len(mean))
        ]
        rows.append(torch.stack(logs).softmax(0))
    return torch.stack(rows)


def gated_attention(z: Tensor, v: Tensor, u: Tensor, w: Tensor) -> Tensor:
    """α of the members of one class."""
    scores = []
    for x in z:
        normed = (x - x.mean()) / torch.sqrt(x.var(unbiased=False) + 1e-5)
        scores.append((w * torch.tanh(v @ normed) * torch.sigmoid(u @ normed)).sum())
    return torch.stack(scores).softmax(0)


def _norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    normed = (x - x.mean()) / torch.sqrt(x.var(unbiased=False) + 1e-5)
    return normed if weight is None else normed * weight + bias


def _gru(x: Tensor, h: Tensor, p: dict[str, Tensor]) -> Tensor:
    i_r, i_z, i_n = (p["gru.weight_ih"] @ x + p["gru.bias_ih"]).chunk(3)
    h_r, h_z, h_n = (p["gru.weight_hh"] @ h + p["gru.bias_hh"]).chunk(3)
    reset, update = torch.sigmoid(i_r + h_r), torch.sigmoid(i_z + h_z)
    return (1 - update) * torch.tanh(i_n + reset * h_n) + update * h


def slot_memberships(
    z: Tensor, draw: Tensor, p: dict[str, Tensor], *, n_rounds: int, n_heads: int, sharpen: float
) -> Tensor:
    """Slot attention and gated cross-attention for the members of one class; `p` are the network's parameters."""
    width = p["query.weight"].shape[0]
    scale = width**-0.25
    beta = torch.exp(p["log_beta"])
    e = [_norm(p["embed.weight"] @ _norm(x) + p["embed.bias"]) for x in z]
    keys = [(p["key_value.weight"] @ x)[:width] for x in e]
    values = [(p["key_value.weight"] @ x)[width:] for x in e]
    slots = [p["slot_mean"][s] + torch.exp(p["slot_log_std"][s]) * draw[s] for s in range(len(draw))]

    def logits(k: Tensor) -> Tensor:
        queries = [p["query.weight"] @ _norm(s, p["slot_norm.weight"], p["slot_norm.bias"]) for s in slots]
        return torch.stack([beta * (k * scale) @ (q * scale) for q in queries])

    for _ in range(n_rounds):
        r = torch.stack([logits(k).softmax(0) for k in keys])
        fresh = []
        for s, slot in enumerate(slots):
            pooled = sum((r[m, s] * v for m, v in enumerate(values)), torch.zeros(width, dtype=z.dtype))
            moved = _gru(pooled / (r[:, s].sum() + 1e-8), slot, p)
            inner = torch.relu(p["mlp.1.weight"] @ _norm(moved, p["mlp.0.weight"], p["mlp.0.bias"]) + p["mlp.1.bias"])
            fresh.append(moved + p["mlp.3.weight"] @ inner + p["mlp.3.bias"])
        slots = fresh
    refined = [_cross(x, slots, p, n_heads) for x in e]
    return torch.stack([(sharpen * logits((p["key_value.weight"] @ y)[:width])).softmax(0) for y in refined])


def _cross(e: Tensor, slots: list[Tensor], p: dict[str, Tensor], n_heads: int) -> Tensor:
    width = len(e)
    size = width // n_heads
    query = p["cross.query.weight"] @ _norm(e, p["cross.norm.weight"], p["cross.norm.bias"])
    memory = [p["cross.key_value.weight"] @ s for s in slots]
    read = []
    for h in range(n_heads):
        part = slice(h * size, (h + 1) * size)
        weight = torch.stack([query[part] @ m[:width][part] / math.sqrt(size) for m in memory]).softmax(0)
        read.append(sum((w * m[width:][part] for w, m in zip(weight, memory, strict=True)), torch.zeros(size).to(e)))
    y = e + torch.tanh(p["cross.attn_gate"]) * (p["cross.out.weight"] @ torch.cat(read))
    inner = F.gelu(
        p["cross.ffn.1.weight"] @ _norm(y, p["cross.ffn.0.weight"], p["cross.ffn.0.bias"]) + p["cross.ffn.1.bias"]
    )
    return y + torch.tanh(p["cross.ffn_gate"]) * (p["cross.ffn.3.weight"] @ inner + p["cross.ffn.3.bias"])
