"""One Gaussian a class whose features may depend on each other, as a density of what is sent.

    q(s | y) = N(s; μ_y, (1 − a) S_y + a diag S_y + σ²I)        μ_y, S_y of the clean features fitted to; a: shrinkage
    L = log N(c + σn; c, σ²I) − log q(c + σn | y)

A class at a time: one covariance in memory, however many classes there are. In float64: S_y is singular where a class
has fewer images than features, and only the noise and the shrinkage keep it apart from zero.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.bounds.parts import Points

SHRINKAGES = (0.05, 0.2, 0.5)  # a; chosen like the number of groups
MOST = 1024  # features: a Cholesky factor of more takes minutes on a CPU for many classes


@dataclass(frozen=True)
class Noisy:
    """Points, and the standard normal noise that each is read with."""

    points: Points
    noise: Float[Tensor, "image dim"]


def full_nats(
    fit: Points, read: Sequence[Noisy], *, n_classes: int, std: float, shrinkages: Sequence[float] = SHRINKAGES
) -> dict[float, tuple[Float[Tensor, " image"], ...]]:
    """L of every point of each set to read, for each shrinkage. A class without images to fit to has those of all."""
    found = {a: tuple(each.noise.new_full((len(each.noise),), math.nan) for each in read) for a in shrinkages}
    for label in range(n_classes):
        mine = fit.z[fit.classes == label]
        mean, covariance = _moments(mine if len(mine) else fit.z)
        for a in shrinkages:
            root = torch.linalg.cholesky((1 - a) * covariance + torch.diag(a * covariance.diagonal() + std**2))
            for each, nats in zip(read, found[a], strict=True):
                rows = (each.points.classes == label).nonzero()[:, 0]
                nats[rows] = _nats(each, rows, mean, root, std).to(nats.dtype)
    return found


def _moments(z: Float[Tensor, "image dim"]) -> tuple[Float[Tensor, " dim"], Float[Tensor, "dim dim"]]:
    mean = z.double().mean(0)
    gap = z.double() - mean
    return mean, gap.T @ gap / len(z)


def _nats(each: Noisy, rows: Tensor, mean: Tensor, root: Tensor, std: float) -> Float[Tensor, " image"]:
    """log N(c + σn; c, σ²I) − log N(c + σn; μ, root rootᵀ); 2π cancels."""
    noise = each.noise[rows].double()
    gap = each.points.z[rows].double() + std * noise - mean
    white: Tensor = torch.linalg.solve_triangular(root, gap.T, upper=False).square().sum(0)
    volume = root.diagonal().log().sum() - len(root) * math.log(std)
    return 0.5 * (white - noise.square().sum(1)) + volume
