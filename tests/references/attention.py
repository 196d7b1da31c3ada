"""Cross-attention and integer sums by slow, obvious loops."""

import math
from itertools import product

import torch
from torch import Tensor


def exact_attention(q: Tensor, keys: Tensor, values: Tensor, beta: float) -> Tensor:
    """softmax(β⟨q, k⟩)-weighted mean of the values, one query at a time in float64."""
    out = []
    for query in q.double():
        weights = torch.softmax(beta * keys.double() @ query, dim=0)
        out.append(weights @ values.double())
    return torch.stack(out)


def polynomial_attention(q: Tensor, keys: Tensor, values: Tensor, coefficients: Tensor) -> Tensor:
    """The same with Σ a_j x^j in place of e^{βx}."""
    out = []
    for query in q.double():
        x = keys.double() @ query
        weights = sum(a * x**j for j, a in enumerate(coefficients.tolist()))
        out.append(weights @ values.double() / weights.sum())
    return torch.stack(out)


def relative_error(answer: Tensor, truth: Tensor) -> float:
    """Median over queries of ‖answer − truth‖ / ‖truth‖."""
    return float(((answer.double() - truth).norm(dim=1) / truth.norm(dim=1)).median())


def tensor_power(x: Tensor, degree: int) -> Tensor:
    """Every ordered product of `degree` coordinates, no symmetry used."""
    choices = product(range(len(x)), repeat=degree)
    return torch.stack([math.prod((x[i] for i in c), start=torch.ones((), dtype=x.dtype)) for c in choices])


def integer_square_norm(matrix: Tensor) -> int:
    """Σ of squares in Python integers."""
    return sum(int(v) * int(v) for v in matrix.flatten().tolist())


def clustered_rows(n: int, d: int, *, seed: int = 0, clusters: int = 12, width: float = 0.15) -> Tensor:
    """Unit vectors around a few fixed directions: inner products as skewed as those of real embeddings."""
    source = torch.Generator().manual_seed(seed)
    which = torch.randint(clusters, (n,), generator=source)
    x = unit_rows(clusters, d, seed=77)[which] + width * torch.randn(n, d, generator=source, dtype=torch.float64)
    return x / x.norm(dim=1, keepdim=True)


def unit_rows(n: int, d: int, *, seed: int = 0) -> Tensor:
    """Random unit vectors in float64."""
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x / x.norm(dim=1, keepdim=True)
