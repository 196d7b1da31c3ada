"""Which pixel directions van Trees should look at: a matrix W, chosen on other images than those it is used on.

    every W:   MSE ≥ (tr W)² / (d [E‖J W‖_F²/σ² + tr WᵀJ_P W])           W = I: the scalar form
    the best:  W = (E JᵀJ/σ² + J_P)⁻¹,  which gives  (1/d) tr[(E JᵀJ/σ² + J_P)⁻¹]

Plugging an estimate of E JᵀJ into the inverse would overstate the bound (the trace of an inverse is convex). With W
fixed beforehand the right side depends on one mean over images, which an interval covers.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

SHRINKAGES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0)  # of E JᵀJ towards its mean eigenvalue
FLOOR = 1e-12  # of an eigenvalue, relative to the largest

Prior = float | Float[Tensor, "pixel pixel"]  # J_P, or p for p·I
Rows = Float[Tensor, "row pixel"]  # Jᵀv/σ


@dataclass(frozen=True)
class Weighing:
    """W = rest·I + basis diag(gain) basisᵀ, symmetric, in float64."""

    basis: Float[Tensor, "pixel rank"]
    gain: Float[Tensor, " rank"]
    rest: float

    def apply(self, rows: Float[Tensor, "*row pixel"]) -> Float[Tensor, "*row pixel"]:
        """Each row times W."""
        rows = rows.double()
        return self.rest * rows + ((rows @ self.basis) * self.gain) @ self.basis.T

    @property
    def trace(self) -> float:
        """tr W."""
        return self.rest * len(self.basis) + float(self.gain.sum())

    def prior_cost(self, prior: Prior) -> float:
        """tr WᵀJ_P W."""
        if isinstance(prior, Tensor):
            return float((self.apply(prior) * self.apply(torch.eye(len(prior)).to(prior))).sum())
        square = self.rest**2 * len(self.basis) + float((self.gain * (self.gain + 2 * self.rest)).sum())
        return prior * square

    def bound(self, energy: float, prior: Prior) -> float:
        """The bound, given E‖J W‖_F²/σ²."""
        return self.trace**2 / (len(self.basis) * (energy + self.prior_cost(prior)))


@dataclass(frozen=True)
class Fixed:
    """W with the J_P that its bound counts."""

    weighing: Weighing
    prior: Prior

    def energies(self, rows: Float[Tensor, "*row pixel"]) -> Float[Tensor, "*row"]:
        """‖W Jᵀv‖²/σ² of each row Jᵀv/σ."""
        return self.weighing.apply(rows).square().sum(-1)

    def bound(self, energy: float) -> float:
        """The bound, given E‖J W‖_F²/σ²."""
        return self.weighing.bound(energy, self.prior)


def identity(dim: int, like: Tensor) -> Weighing:
    """W = I."""
    none = torch.zeros(dim, 0, dtype=torch.float64, device=like.device)
    return Weighing(none, none[0], 1.0)


def fit_weighing(rows: Rows, check: Float[Tensor, "check pixel"], prior: Prior) -> Weighing:
    """The W of these rows that bounds best on the `check` rows, which must come from other images."""
    known = _spectrum(rows, prior)
    tried = [identity(rows.shape[1], rows), *(known.inverse(share) for share in SHRINKAGES)]
    return max(tried, key=lambda weighing: weighing.bound(energy(weighing, check), prior))


def energy(weighing: Weighing, rows: Rows) -> float:
    """Mean of ‖W Jᵀv‖²/σ²."""
    return float(weighing.apply(rows).square().sum(-1).mean())


@dataclass(frozen=True)
class _Spectrum:
    """E JᵀJ/σ² + J_P = rest·I + basis diag(value) basisᵀ, and the mean eigenvalue of the first summand."""

    basis: Float[Tensor, "pixel rank"]
    value: Float[Tensor, " rank"]
    rest: float
    mean: float

    def inverse(self, shrinkage: float) -> Weighing:
        """(… + shrinkage · mean · I)⁻¹."""
        rest = self.rest + shrinkage * self.mean
        if rest == 0:  # the basis spans all pixels
            return Weighing(self.basis, 1 / self.value, 0.0)
        return Weighing(self.basis, 1 / (self.value + rest) - 1 / rest, 1 / rest)


def _spectrum(rows: Rows, prior: Prior) -> _Spectrum:
    """Of as low a rank as the rows allow."""
    scaled = rows.double() / len(rows) ** 0.5
    mean = float(scaled.square().sum()) / rows.shape[1]
    if isinstance(prior, Tensor):
        value, basis = torch.linalg.eigh(scaled.T @ scaled + prior.double())
        return _Spectrum(basis, value.clamp_min(FLOOR * float(value[-1])), 0.0, mean)
    if len(rows) >= rows.shape[1]:
        value, basis = torch.linalg.eigh(scaled.T @ scaled)
        return _Spectrum(basis, value.clamp_min(0), prior, mean)
    value, left = torch.linalg.eigh(scaled @ scaled.T)
    kept = value > FLOOR * value[-1]
    return _Spectrum(scaled.T @ (left[:, kept] / value[kept].sqrt()), value[kept], prior, mean)
