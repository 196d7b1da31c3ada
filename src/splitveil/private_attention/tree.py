"""The source paper's structure, as a reference and a baseline: a noisy binary tree over the rows for every feature
and column.

    exp(β⟨q, k⟩) ≈ ⟨P(q), P(k)⟩       P = Taylor features of degree s, r = (d+s choose s)
    tree (t, j) over i = 1 … n        leaves P(k_i)_t w_ij,  w = value columns and the constant 1
                                      truncated Laplace noise at every node
    query                             Σ_t P(q)_t · tree(t, j).range(0, n), median over copies; then num / last

Budget: a row is in one leaf and ⌈log₂ n⌉ + 1 nodes of each of N = r·(d_v + 1)·copies trees. Half of δ and advanced
composition give a tree its ε₀, the other half its δ₀ = δ / 2N; a node gets ε₀ and δ₀ over the number of levels.
Bounds the paper states:

    relative 2ε_s / (1 − ε_s)         additive ∝ R^{2s} R_w r² / ((1 − ε_s) n ε), up to constants and logarithms

The text behind this file is the paper's abstract and its outline; where they leave a choice the one that favors the
tree was taken (one copy by default, noise only as large as (ε, δ) asks). Noise is plain floating point: not for
deployment.

Source: "Differential Privacy of Cross-Attention with Provable Guarantee", arXiv 2407.14717.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from splitveil.check import UsageError, positive
from splitveil.private_attention.polynomial import Monomials, PolynomialFeatures
from splitveil.private_attention.spec import Bounds, PrivacySpec

MOST_DIMENSIONS = 4
Reals = NDArray[np.float64]


@dataclass(frozen=True)
class PaperBounds:
    """The paper's error bounds at these settings; `additive` without its constants and logarithms."""

    relative: float
    additive: float


class DPTreeCrossAttention:
    """The paper's structure for d ≤ 4.

    Guarantees: (ε, δ)-DP for the content of one row against an empty row (n is public); without noise its answers
    are those of a flat sum.
    """

    def __init__(
        self,
        keys: Float[Tensor, "row d"],
        values: Float[Tensor, "row dv"],
        spec: PrivacySpec,
        bounds: Bounds,
        *,
        beta: float,
        degree: int = 2,
        copies: int = 1,
        seed: int | None = None,
    ) -> None:
        self.n, self.d = keys.shape
        if self.d > MOST_DIMENSIONS:
            raise UsageError(f"the paper's tree is a reference for d ≤ {MOST_DIMENSIONS}, got {self.d}; use PrivateKV")
        if copies < 1 or copies % 2 == 0:
            raise UsageError(f"copies must be odd, got {copies}; the answer is their median")
        self.spec, self.bounds, self.beta, self.degree = spec, bounds, positive("beta", beta), degree
        self._monomials = Monomials(self.d, degree)
        self._rng = np.random.default_rng(seed)
        self.n_features = sum(self._monomials.sizes)
        self.n_levels = math.ceil(math.log2(max(self.n, 1))) + 1
        n_trees = self.n_features * (values.shape[1] + 1) * copies
        self._node_epsilon = tree_epsilon(spec.epsilon, spec.delta, n_trees) / self.n_levels
        self._node_delta = spec.delta / (2 * n_trees * self.n_levels)
        leaves = self._leaves(_clip(keys, bounds.key_norm), _clip(values, bounds.value_norm))
        self._copies = [self._grow(leaves) for _ in range(copies)]

    def attend(self, q: Float[Tensor, "query d"]) -> Float[Tensor, "query dv"]:
        """Numerator and normalizer by range queries over all n rows, one tree a feature and column."""
        weights = self._features(_clip(q, self.bounds.query_norm))
        answers = np.median([weights @ self.range(0, self.n, copy=c) for c in range(len(self._copies))], axis=0)
        return torch.from_numpy(answers[:, :-1] / answers[:, -1:])

    def range(self, start: int, end: int, *, copy: int = 0) -> Float[np.ndarray, "feature column"]:
        """Σ over rows start … end − 1 of P(k)wᵀ, from the O(log n) nodes that make up the range."""
        levels = self._copies[copy]
        total = np.zeros(levels[0].shape[1:])
        for nodes in levels:
            if start >= end:
                break
            if start % 2:
                total += nodes[start]
                start += 1
            if end % 2:
                end -= 1
                total += nodes[end]
            start, end = start // 2, end // 2
        return total

    @property
    def space(self) -> int:
        """Numbers stored."""
        return sum(nodes.size for levels in self._copies for nodes in levels)

    def paper_bounds(self) -> PaperBounds:
        """The paper's own bounds, to be shown beside a measured error."""
        b = self.bounds
        eps_s = PolynomialFeatures(self.d, self.degree).taylor(self.beta).relative_error(b.largest_inner)
        if eps_s >= 1:
            return PaperBounds(math.inf, math.inf)
        size = max(b.key_norm, b.query_norm) ** (2 * self.degree) * b.value_norm * self.n_features**2
        return PaperBounds(2 * eps_s / (1 - eps_s), size / ((1 - eps_s) * self.n * self.spec.epsilon))

    def _features(self, x: Tensor) -> Reals:
        scale = [math.sqrt(self.beta**j / math.factorial(j)) for j in range(self.degree + 1)]
        weights = torch.cat([s * roots for s, roots in zip(scale, self._monomials.roots, strict=True)])
        return np.asarray(self._monomials.of_rows(x) * weights)

    def _largest_features(self) -> Reals:
        """max |P(k)_t| over ‖k‖ ≤ R: a monomial Π k_i^{m_i} of degree j is at most R^j Π (m_i / j)^{m_i / 2}."""
        out = []
        for j in range(self.degree + 1):
            scale = math.sqrt(self.beta**j / math.factorial(j)) * self.bounds.key_norm**j
            out += [
                scale * root * _monomial_peak(t)
                for root, t in zip(self._monomials.roots[j].tolist(), self._monomials.indices[j], strict=True)
            ]
        return np.array(out)

    def _leaves(self, keys: Tensor, values: Tensor) -> Reals:
        columns = torch.cat([values, torch.ones(len(values), 1, dtype=torch.float64)], dim=1)
        leaves = np.zeros((1 << (self.n_levels - 1), self.n_features, columns.shape[1]))
        leaves[: self.n] = self._features(keys)[:, :, None] * np.asarray(columns)[:, None, :]
        return leaves

    def _grow(self, leaves: Reals) -> list[Reals]:
        widths = np.append(np.full(leaves.shape[2] - 1, self.bounds.value_norm), 1.0)
        sensitivity = self._largest_features()[:, None] * widths
        levels, sums = [], leaves
        for _ in range(self.n_levels):
            levels.append(sums + sensitivity * self._noise(sums.shape))
            sums = sums.reshape(-1, 2, *sums.shape[1:]).sum(1) if len(sums) > 1 else sums
        return levels

    def _noise(self, shape: tuple[int, ...]) -> Reals:
        return truncated_laplace(shape, self._node_epsilon, self._node_delta, self._rng)


def tree_epsilon(epsilon: float, delta: float, n_trees: int) -> float:
    """ε₀ with √(2N ln(2/δ))·ε₀ + N ε₀ (e^{ε₀} − 1) = ε: advanced composition with δ/2 to spare."""
    low, high = 0.0, min(epsilon, 100.0)  # e¹⁰⁰ is beyond any ε and still a float
    for _ in range(100):
        middle = (low + high) / 2
        cost = math.sqrt(2 * n_trees * math.log(2 / delta)) * middle + n_trees * middle * math.expm1(middle)
        low, high = (middle, high) if cost <= epsilon else (low, middle)
    return max(low, epsilon / n_trees)  # basic composition, where it is better


def truncated_laplace(shape: tuple[int, ...], epsilon: float, delta: float, rng: np.random.Generator) -> Reals:
    """Laplace noise of scale 1/ε cut at ±ln(1 + (e^ε − 1) / 2δ) / ε: (ε, δ)-DP for sensitivity 1 (Geng et al. 2020)."""
    cut = math.log1p(math.expm1(min(epsilon, 100.0)) / (2 * delta))  # beyond 100 the noise is nil either way
    inside = -math.expm1(-cut)
    size = -np.log1p(-rng.random(shape) * inside) / epsilon
    return np.where(rng.random(shape) < 0.5, -size, size)


def _monomial_peak(indices: tuple[int, ...]) -> float:
    j = len(indices)
    return math.prod(math.sqrt(indices.count(i) / j) ** indices.count(i) for i in set(indices))


def _clip(x: Tensor, radius: float) -> Tensor:
    x = torch.nan_to_num(x.detach().double(), nan=0.0, posinf=0.0, neginf=0.0)
    excess: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True) / radius
    return x / excess.clamp_min(1.0)
