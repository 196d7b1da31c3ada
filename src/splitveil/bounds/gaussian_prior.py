"""Van Trees with the least prior information that the images' covariance allows.

    every density with covariance C has J_P ≽ C⁻¹;     C = R Rᵀ of other images, R = centered images / √n
    W = (E JᵀJ/σ² + C⁻¹)⁻¹ = R M Rᵀ,   M = (I + Rᵀ E JᵀJ R/σ²)⁻¹            n × n, however many pixels there are

A Gaussian is the only density with J_P = C⁻¹, so for anything else the number is more than van Trees can prove: images
are no Gaussians, and attackers may know it. As σ → 0 the prior no longer matters.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.bounds.weighing import Rows
from splitveil.types import Images


@dataclass(frozen=True)
class GaussianWeighing:
    """W = R M Rᵀ."""

    root: Float[Tensor, "pixel image"]
    middle: Float[Tensor, "image image"]

    @property
    def trace(self) -> float:
        """tr W."""
        return float((self.root @ self.middle * self.root).sum())

    @property
    def prior_cost(self) -> float:
        """tr Wᵀ C⁻¹ W = ‖R M‖²."""
        return float((self.root @ self.middle).square().sum())

    def energies(self, rows: Float[Tensor, "*row pixel"]) -> Float[Tensor, "*row"]:
        """‖W Jᵀv‖²/σ² of each row Jᵀv/σ."""
        return (rows.double() @ self.root @ self.middle @ self.root.T).square().sum(-1)

    def bound(self, energy: float) -> float:
        """The bound, given E‖J W‖_F²/σ²."""
        return self.trace**2 / (len(self.root) * (energy + self.prior_cost))


def gaussian_weighing(images: Images, rows: Rows) -> GaussianWeighing:
    """The best W for Gaussians with the covariance of these images, whose Jᵀv/σ are the rows."""
    flat = images.flatten(1).double()
    root = (flat - flat.mean(0)).T / len(flat) ** 0.5
    seen = rows.double() @ root
    inner = torch.eye(len(flat)).to(root) + seen.T @ seen / len(rows)
    return GaussianWeighing(root, torch.linalg.inv(inner))
