"""Polynomial features of exp(β⟨q, k⟩), Taylor or fitted by least squares on public inner products.

    p(x) = Σ_j a_j x^j ≈ e^{βx},  |x| ≤ Q·R
    φ_j(k) = α_j k^{⊗j}      ψ_j(q) = (a_j / α_j) q^{⊗j}      α_j² = |a_j| (Q/R)^j
    B² = Σ_j α_j² R^{2j}     κ_min = min_{|x| ≤ R²} Σ_j α_j² x^j

k^{⊗j} is kept as symmetric monomials weighted by √multinomial, so ⟨q^{⊗j}, k^{⊗j}⟩ = ⟨q, k⟩^j. The noise in an answer
is ∝ B‖ψ(q)‖, and this α makes it Σ_j |a_j| (QR)^j, the least by Cauchy–Schwarz. Coefficients live on the query side:
β may change after the release at no privacy cost, but a degree with a_j = 0 is dropped from φ and stays unavailable
to a later β.

Least squares makes p exact on average where inner products really lie (near 0 in high dimension), Taylor bounds the
error for the worst query and key: p(x)e^{−βx} is monotone on either side of 0, so its largest distance from 1 is at
±Q·R.
"""

import math
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, pairwise
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.check import UsageError, positive
from splitveil.private_attention.kernel import FeatureMap, Kernel
from splitveil.private_attention.lattice import FEATURE_BITS
from splitveil.private_attention.spec import Bounds

KEPT_PRODUCTS = 4096  # order statistics of the public inner products, kept so that a later β can be fitted
MOST_FEATURES = 100_000  # a memory of this many rows and 64 columns is 50 MB
MOST_WEIGHT = 1e300  # B² beyond it leaves no room for the sums that follow
MARGIN = 1e-9  # of B², taken off κ_min for rounding in its minimization
NEARLY_REAL = 1e-3  # imaginary part of a root of p′ that may be a double real root


class Monomials:
    """All monomials of degree 0 … s in d variables, degree by degree, each degree in lexicographic order.

    In that order the monomials of degree j that begin with variable i are x_i times a suffix of those of degree j − 1.
    """

    def __init__(self, d: int, degree: int) -> None:
        tuples = [list(combinations_with_replacement(range(d), j)) for j in range(degree + 1)]
        self.indices = tuples
        self.sizes = [len(block) for block in tuples]
        self.roots = [torch.tensor([_root_multinomial(t) for t in block], dtype=torch.float64) for block in tuples]
        self.first = [torch.tensor([t[0] if t else d for t in block]) for block in tuples]  # 1 begins with none: d
        self.rest = [self.first[0], *(_positions(block, lower) for lower, block in pairwise(tuples))]
        self._on: dict[torch.device, list[tuple[Tensor, Tensor]]] = {}
        self._starts = [torch.searchsorted(first, torch.arange(d)).tolist() for first in self.first]

    def of_columns(
        self, x: Float[Tensor, "d row"], out: Float[Tensor, "monomial row"] | None = None
    ) -> Float[Tensor, "monomial row"]:
        """The monomials of each column. Elementwise products of contiguous rows."""
        out = x.new_empty(sum(self.sizes), x.shape[1]) if out is None else out
        blocks = torch.split(out, self.sizes)
        blocks[0].fill_(1.0)
        for j in range(1, len(blocks)):
            ends = [*self._starts[j][1:], self.sizes[j]]
            for i, (start, end) in enumerate(zip(self._starts[j], ends, strict=True)):
                torch.mul(blocks[j - 1][self._starts[j - 1][i] :], x[i], out=blocks[j][start:end])
        return out

    def of_rows(self, q: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch monomial"]:
        """The monomials of each vector. Differentiable. Laid out monomial by monomial, where gathering copies runs."""
        columns = q.movedim(-1, 0).contiguous()
        blocks = [torch.ones_like(columns[:1]), columns]
        for first, rest in self._indices_on(q.device):
            blocks.append(blocks[-1].index_select(0, rest) * columns.index_select(0, first))
        return torch.cat(blocks[: len(self.sizes)]).movedim(0, -1)

    def _indices_on(self, device: torch.device) -> list[tuple[Tensor, Tensor]]:
        """(first, rest) of degree 2, 3, … on a device, copied there once."""
        if device not in self._on:
            pairs = zip(self.first[2:], self.rest[2:], strict=True)
            with torch.inference_mode(False):  # gradients of a later query need them
                self._on[device] = [(first.to(device), rest.to(device)) for first, rest in pairs]
        return self._on[device]


@dataclass(frozen=True, eq=False)
class PolynomialFeatures(FeatureMap):
    """The polynomial p of degree `degree` in d dimensions; call `fit_public` or `taylor` to choose its coefficients."""

    d: int
    degree: int = 2
    beta: float = 0.0
    method: Literal["none", "least_squares", "taylor"] = "none"
    products: Float[Tensor, "product"] | None = None  # public; None for Taylor

    def __post_init__(self) -> None:
        if self.d < 1 or self.degree < 0:
            raise UsageError(f"PolynomialFeatures needs d ≥ 1 and degree ≥ 0, got d={self.d}, degree={self.degree}")
        if math.comb(self.d + self.degree, self.degree) > MOST_FEATURES:
            count = math.comb(self.d + self.degree, self.degree)
            raise UsageError(
                f"d={self.d}, degree={self.degree} makes {count} features, more than {MOST_FEATURES}; "
                "lower the degree, or d by a public projection"
            )

    def fit_public(self, inner_products: Float[Tensor, "*product"], beta: float) -> "PolynomialFeatures":
        """Least squares on public inner products ⟨q, k − key_center⟩."""
        positive("beta", beta)
        products = inner_products.detach().double().flatten()
        products = products[torch.isfinite(products)].sort().values
        if len(products) <= self.degree:
            raise UsageError(
                f"degree {self.degree} needs more than {self.degree} public inner products, got {len(products)}"
            )
        keep = torch.linspace(0, len(products) - 1, min(len(products), KEPT_PRODUCTS)).long()
        return replace(self, beta=float(beta), method="least_squares", products=products[keep])

    def taylor(self, beta: float) -> "PolynomialFeatures":
        """a_j = β^j / j!: needs no public data and comes with a uniform bound."""
        positive("beta", beta)
        return replace(self, beta=float(beta), method="taylor", products=None)

    def coefficients(self, beta: float, degrees: tuple[int, ...] | None = None) -> Float[Tensor, "coefficient"]:
        """a_0 … a_s at this β, zero for a degree that is not in `degrees`."""
        chosen = tuple(range(self.degree + 1)) if degrees is None else degrees
        out = torch.zeros(self.degree + 1, dtype=torch.float64)
        if self.method == "taylor":
            try:
                for j in chosen:
                    out[j] = beta**j / math.factorial(j)
            except OverflowError:
                raise UsageError(f"beta = {beta:g} to the power {j} overflows; lower beta or the degree") from None
        elif self.products is not None:
            x = self.products
            design = torch.stack([x**j for j in chosen], dim=1)
            target = (beta * x).exp()
            if not bool(torch.isfinite(target).all()):
                raise UsageError(f"beta = {beta:g} is too large: e^(beta·⟨q, k⟩) overflows on public rows; lower it")
            out[list(chosen)] = torch.linalg.lstsq(design, target[:, None], driver="gelsd").solution[:, 0]
        else:
            raise UsageError(
                "PolynomialFeatures has no coefficients yet; call .fit_public(inner_products, beta) or .taylor(beta)"
            )
        return out

    def relative_error(self, largest_inner: float, beta: float | None = None) -> float:
        """ε_s: the largest |p(x) e^{−βx} − 1| over |x| ≤ `largest_inner`. Exact for Taylor, on a fine grid
        otherwise."""
        beta = self.beta if beta is None else beta
        n_points = 2 if self.method == "taylor" else 20_001
        x = torch.linspace(-largest_inner, largest_inner, n_points, dtype=torch.float64)
        powers = torch.stack([x**j for j in range(self.degree + 1)])
        return float(((self.coefficients(beta) @ powers) * (-beta * x).exp() - 1).abs().max())

    def bind(self, bounds: Bounds) -> "PolynomialKernel":
        return PolynomialKernel(self, key_norm=bounds.key_norm, query_norm=bounds.query_norm)


class PolynomialKernel(Kernel):
    """⟨ψ(q), φ(k)⟩ = p(⟨q, k⟩).

    Guarantees: the identity holds to rounding; ‖φ(k)‖ ≤ B for ‖k‖ ≤ R; ⟨φ(k), φ(k′)⟩ ≥ κ_min.
    """

    def __init__(self, features: PolynomialFeatures, *, key_norm: float, query_norm: float) -> None:
        self.features, self.key_norm, self.largest_query = features, key_norm, query_norm
        self.beta, self.d = features.beta, features.d
        self.alpha2, weights = _alpha2(features, key_norm, query_norm)
        self.degrees = tuple(j for j, square in enumerate(self.alpha2) if square > 0)
        self._ratios: dict[float, dict[int, float]] = {}
        self.monomials = Monomials(features.d, features.degree)
        self.n_features = sum(self.monomials.sizes[j] for j in self.degrees)
        self._is_whole = len(self.degrees) == len(self.monomials.sizes)  # no degree was dropped
        self.norm = math.sqrt(math.fsum(weights))
        self.least_inner = _least(weights) - MARGIN * self.norm**2
        scale = 2.0**FEATURE_BITS / self.norm
        self._lift_weights = torch.cat(
            [
                (scale * math.sqrt(a2) * key_norm**j) * roots
                for j, (a2, roots) in enumerate(zip(self.alpha2, self.monomials.roots, strict=True))
            ]
        )

    def lift(
        self, unit_keys: Float[Tensor, "d row"], out: Float[Tensor, "feature row"] | None = None
    ) -> Float[Tensor, "feature row"]:
        lifted = self.monomials.of_columns(unit_keys, out if self._is_whole else None)
        lifted *= self._lift_weights.to(unit_keys.device)[:, None]
        if self._is_whole:
            return lifted
        blocks = torch.split(lifted, self.monomials.sizes)
        return torch.cat([blocks[j] for j in self.degrees])

    def query_coefficients(self, beta: float) -> dict[int, float]:
        """a_j / α_j for each degree that was released; fitted once for each β."""
        if beta not in self._ratios:
            a = self.features.coefficients(beta, self.degrees)
            self._ratios[beta] = {j: float(a[j]) / math.sqrt(self.alpha2[j]) for j in self.degrees}
        return self._ratios[beta]

    def basis(self, q: Float[Tensor, "*batch d"], beta: float) -> Float[Tensor, "*batch feature"]:
        monomials = self.monomials.of_rows(q)
        if self._is_whole:
            return monomials
        blocks = torch.split(monomials, self.monomials.sizes, dim=-1)
        return torch.cat([blocks[j] for j in self.degrees], dim=-1)

    def fold(
        self, moments: Float[Tensor, "*head feature column"], beta: float
    ) -> Float[Tensor, "*head feature column"]:
        ratio = self.query_coefficients(beta)
        weights = torch.cat([ratio[j] * self.monomials.roots[j] for j in self.degrees])
        return moments * weights.to(moments)[:, None]

    def query_norm(
        self, q: Float[Tensor, "*batch d"], basis: Float[Tensor, "*batch feature"], beta: float
    ) -> Float[Tensor, "*batch"]:
        square = q.square().sum(-1)
        ratio = self.query_coefficients(beta)
        total = torch.full_like(square, ratio.get(self.features.degree, 0.0) ** 2)
        for j in range(self.features.degree - 1, -1, -1):  # Σ_j (a_j/α_j)² ‖q‖^{2j} by Horner's rule
            total = total * square + ratio.get(j, 0.0) ** 2
        return total.sqrt()

    def counting(self) -> Float[Tensor, "feature"]:
        weights = torch.zeros(self.n_features, dtype=torch.float64)
        if 0 in self.degrees:
            weights[0] = 1 / math.sqrt(self.alpha2[0])
        return weights

    def describe(self) -> str:
        largest = self.largest_query * self.key_norm
        worst = self.features.relative_error(largest)
        how = "Taylor series" if self.features.method == "taylor" else "least squares on public inner products"
        return (
            f"exp(β⟨q,k⟩) at β = {self.beta:g} is replaced by a polynomial of degree {self.features.degree} ({how}); "
            f"over all |⟨q,k⟩| ≤ {largest:.3g} it is off by at most {worst:.3g} of the true weight"
        )

    def settings(self) -> dict[str, Any]:
        return {
            "kind": "polynomial",
            "d": self.d,
            "degree": self.features.degree,
            "beta": self.beta,
            "method": self.features.method,
            "key_norm": self.key_norm,
            "query_norm": self.largest_query,
        }

    def tensors(self) -> dict[str, Tensor]:
        return {} if self.features.products is None else {"products": self.features.products}


def _alpha2(features: PolynomialFeatures, key_norm: float, query_norm: float) -> tuple[list[float], list[float]]:
    """α_j², and α_j² R^{2j} that sum to B²."""
    a = features.coefficients(features.beta)
    try:
        alpha2 = [abs(float(a_j)) * (query_norm / key_norm) ** j for j, a_j in enumerate(a)]
        weights = [a2 * key_norm ** (2 * j) for j, a2 in enumerate(alpha2)]
        square = math.fsum(weights)
    except OverflowError:
        square = math.inf
    if not 0 < square < MOST_WEIGHT:
        raise UsageError(
            f"beta = {features.beta:g} with query_norm {query_norm:g} and key_norm {key_norm:g} leaves the range of "
            "floats; lower beta, query_norm or the degree, and keep key_norm near the length of a key"
        )
    return alpha2, weights


def _least(weights: list[float]) -> float:
    """min_{|t| ≤ 1} Σ w_j t^j: at an end or a stationary point (nearly real ones included, so that none is missed)."""
    curve = np.polynomial.Polynomial(weights)
    inside = [float(r.real) for r in curve.deriv().roots() if abs(r.imag) < NEARLY_REAL and abs(r.real) < 1]
    return float(min(curve(t) for t in (-1.0, 1.0, *inside)))


def _root_multinomial(indices: tuple[int, ...]) -> float:
    repeats = (math.factorial(indices.count(i)) for i in set(indices))
    return math.sqrt(math.factorial(len(indices)) / math.prod(repeats))


def _positions(block: list[tuple[int, ...]], lower: list[tuple[int, ...]]) -> Tensor:
    """Where each monomial, without its first variable, lies in the block of one degree less."""
    where = {t: p for p, t in enumerate(lower)}
    return torch.tensor([where[t[1:]] for t in block])
