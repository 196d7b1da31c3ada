"""Nyström features for few dimensions: the softmax kernel itself, seen through public landmarks.

    κ(x, y) = e^{β⟨x,y⟩}      k′ = k √(Q/R),  q′ = q √(R/Q)  so that ⟨q′, k′⟩ = ⟨q, k⟩ and both have norm ≤ √(QR)
    W = Λ^{−1/2} Uᵀ of K_LL = U Λ Uᵀ (eigenvalues above a floor)
    φ(k) = W κ(L, k′)         ψ(q) = W κ(L, q′)               ‖φ(k)‖² ≤ κ(k′, k′) ≤ e^{βQR} = B²

⟨ψ(q), φ(k)⟩ is κ projected on the span of the landmarks. In few dimensions a few hundred landmarks cover the ball,
and little bias is left (measured at d = 4 alone); in many they do not. Another β is reached by scaling q.

The lift is exact arithmetic on integers around one elementwise exponential, so rows stay independent of each other.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.check import UsageError, positive
from splitveil.private_attention.kernel import Constants, FeatureMap, Kernel
from splitveil.private_attention.lattice import EXACT_BITS, FEATURE_BITS, coordinate_bits, steady_exp
from splitveil.private_attention.spec import Bounds

MOST_DIMENSIONS = 8
MOST_LANDMARKS = 1024
EIGENVALUE_FLOOR = (
    1e-4  # of the largest: smaller ones amplify the rounding of κ and W (bias 3e-4 at 1e-4, 2e-2 at 1e-7)
)
KERNEL_BITS = 27  # of κ / e^{βQR} before the exact product with W
LARGEST_EXPONENT = 60.0  # β·Q·R: the range of steady_exp


@dataclass(frozen=True, eq=False)
class NystromFeatures(FeatureMap):
    """Landmarks are public keys, already measured from the key center."""

    landmarks: Float[Tensor, "landmark d"]
    beta: float

    def __post_init__(self) -> None:
        positive("beta", self.beta)
        n, d = self.landmarks.shape
        if d > MOST_DIMENSIONS:
            raise UsageError(f"Nyström features need d ≤ {MOST_DIMENSIONS}, got {d}; use PolynomialFeatures")
        if not 1 <= n <= MOST_LANDMARKS:
            raise UsageError(f"Nyström features take 1 to {MOST_LANDMARKS} landmarks, got {n}; pick a random subset")
        if not bool(torch.isfinite(self.landmarks).all()):
            raise UsageError("landmarks must be finite, got NaN or inf; clean the public keys first")

    @property
    def d(self) -> int:  # type: ignore[override]
        return self.landmarks.shape[1]

    def bind(self, bounds: Bounds) -> "NystromKernel":
        return NystromKernel(self.landmarks, self.beta, key_norm=bounds.key_norm, query_norm=bounds.query_norm)


class NystromKernel(Kernel):
    """⟨ψ(q), φ(k)⟩ = κ(q′, L) K_LL⁺ κ(L, k′)."""

    def __init__(self, landmarks: Tensor, beta: float, *, key_norm: float, query_norm: float) -> None:
        exponent = beta * key_norm * query_norm
        if exponent > LARGEST_EXPONENT:
            raise UsageError(
                f"β·Q·R = {exponent:.3g} exceeds {LARGEST_EXPONENT:g}; use CodebookFeatures for a sharp kernel"
            )
        self.beta, self.d = beta, landmarks.shape[1]
        self._landmarks, self._key_norm, self._query_norm = landmarks.double().cpu(), key_norm, query_norm
        self._exponent = exponent
        inside = self._landmarks / key_norm  # in units of the ball of radius √(QR)
        self._unit = inside / torch.linalg.vector_norm(inside, dim=1, keepdim=True).clamp_min(1.0)
        gram = (exponent * self._unit @ self._unit.T).exp()
        values, vectors = torch.linalg.eigh(gram)
        keep = values > EIGENVALUE_FLOOR * values[-1]
        self._whiten = (vectors[:, keep] / values[keep].sqrt()).T.contiguous()
        self.n_features = self._whiten.shape[0]
        self.norm = math.exp(exponent / 2)
        self.least_inner = -(self.norm**2)  # κ > 0, but its projection need not be
        self._one = 2.0 ** coordinate_bits(self.d)
        bits = EXACT_BITS - KERNEL_BITS - math.ceil(math.log2(len(inside) + 1))
        self._whiten_unit = float(self._whiten.abs().max()) / 2.0**bits
        self._whiten_int = torch.round(self._whiten / self._whiten_unit)
        self._unit_int = torch.trunc(self._unit * self._one)
        self._constants = Constants(self._unit, self._whiten)

    def lift(
        self, unit_keys: Float[Tensor, "d row"], out: Float[Tensor, "feature row"] | None = None
    ) -> Float[Tensor, "feature row"]:
        keys = torch.trunc(unit_keys * self._one)
        inner = self._unit_int.to(keys.device) @ keys / self._one**2  # exact, then one rounding
        kernel = torch.trunc(steady_exp((inner - 1.0) * self._exponent) * 2.0**KERNEL_BITS)  # κ / e^{βQR}
        whitened = self._whiten_int.to(keys.device) @ kernel  # exact
        scale = self._whiten_unit / 2.0**KERNEL_BITS * math.exp(self._exponent) / self.norm * 2.0**FEATURE_BITS
        return whitened.mul_(scale)

    def basis(self, q: Float[Tensor, "*batch d"], beta: float) -> Float[Tensor, "*batch feature"]:
        unit, whiten = self._constants.like(q)
        inner: Tensor = q @ unit.T * (beta / self.beta * self._exponent / self._query_norm)
        features: Tensor = inner.exp() @ whiten.T
        return features

    def counting(self) -> Float[Tensor, "feature"]:
        return self.basis(torch.zeros(self.d, dtype=torch.float64), self.beta)

    def describe(self) -> str:
        return (
            f"exp(β⟨q,k⟩) at β = {self.beta:g} is projected on {self._landmarks.shape[0]} public landmarks "
            f"({self.n_features} features kept)"
        )

    def settings(self) -> dict[str, Any]:
        return {"kind": "nystrom", "beta": self.beta, "key_norm": self._key_norm, "query_norm": self._query_norm}

    def tensors(self) -> dict[str, Tensor]:
        return {"landmarks": self._landmarks}
