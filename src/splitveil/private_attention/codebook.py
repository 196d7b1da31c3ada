"""Public vector quantization for sharp kernels (large β), where a polynomial would need a degree that noise drowns.

    φ(k) = e_j,  j = argmin ‖k − c_j‖ over public centroids        ψ(q)_j = e^{β⟨q, c_j⟩}        B = 1,  κ_min = 0

The release is a noisy count and a noisy sum of values in every cell: B does not grow with β, and any β may be asked
later. The price is a bias: a key is answered for as if it lay on its cell's centroid.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.check import UsageError, positive
from splitveil.private_attention.kernel import Constants, FeatureMap, Kernel
from splitveil.private_attention.lattice import FEATURE_BITS, coordinate_bits, to_unit_ball
from splitveil.private_attention.spec import Bounds


@dataclass(frozen=True, eq=False)
class CodebookFeatures(FeatureMap):
    """Centroids are public, measured from the key center."""

    centroids: Float[Tensor, "cell d"]
    beta: float

    def __post_init__(self) -> None:
        positive("beta", self.beta)
        if len(self.centroids) < 1 or not bool(torch.isfinite(self.centroids).all()):
            raise UsageError("centroids must be a non-empty finite matrix; fit them with CodebookFeatures.fit_public")

    @property
    def d(self) -> int:  # type: ignore[override]
        return self.centroids.shape[1]

    @classmethod
    def fit_public(cls, keys: Float[Tensor, "row d"], cells: int, beta: float, *, seed: int = 0) -> "CodebookFeatures":
        """K-means on public keys."""
        from sklearn.cluster import KMeans

        if not 1 <= cells <= len(keys):
            raise UsageError(f"cells must lie in [1, {len(keys)}], the number of public keys; got {cells}")
        fitted = KMeans(cells, n_init=1, random_state=seed).fit(np.asarray(keys.detach().double().cpu()))
        return cls(torch.from_numpy(fitted.cluster_centers_).double(), float(beta))

    def bind(self, bounds: Bounds) -> "CodebookKernel":
        return CodebookKernel(self.centroids, self.beta, key_norm=bounds.key_norm)


class CodebookKernel(Kernel):
    """⟨ψ(q), φ(k)⟩ = e^{β⟨q, c(k)⟩}, scaled for each query by its largest term: answers are ratios and do not see
    it."""

    def __init__(self, centroids: Tensor, beta: float, *, key_norm: float) -> None:
        self.beta, self.d, self.n_features = beta, centroids.shape[1], centroids.shape[0]
        self.norm, self.least_inner = 1.0, 0.0
        self._centroids, self._key_norm = centroids.double().cpu(), key_norm
        self._constants = Constants(self._centroids)
        self._one = 2.0 ** (coordinate_bits(self.d) - 1)  # one bit for the doubled inner product
        self._unit_int = torch.trunc(to_unit_ball(self._centroids, key_norm) * self._one)

    def lift(
        self, unit_keys: Float[Tensor, "d row"], out: Float[Tensor, "feature row"] | None = None
    ) -> Float[Tensor, "feature row"]:
        cells = self._unit_int.to(unit_keys.device)
        keys = torch.trunc(unit_keys * self._one)
        nearness = 2 * (cells @ keys) - cells.square().sum(1, keepdim=True)  # exact integers; ties go to the first cell
        return torch.nn.functional.one_hot(nearness.argmax(0), self.n_features).T.double() * 2.0**FEATURE_BITS

    def basis(self, q: Float[Tensor, "*batch d"], beta: float) -> Float[Tensor, "*batch feature"]:
        (centroids,) = self._constants.like(q)
        logits = beta * (q @ centroids.T)
        return (logits - logits.amax(-1, keepdim=True)).exp()

    def counting(self) -> Float[Tensor, "feature"]:
        return torch.ones(self.n_features, dtype=torch.float64)

    def describe(self) -> str:
        return f"every key is replaced by the nearest of {self.n_features} public centroids; any β may be asked"

    def settings(self) -> dict[str, Any]:
        return {"kind": "codebook", "beta": self.beta, "key_norm": self._key_norm}

    def tensors(self) -> dict[str, Tensor]:
        return {"centroids": self._centroids}
