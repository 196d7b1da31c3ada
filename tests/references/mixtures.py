"""Slow, obvious K-means and Gaussian-mixture mathematics: one class, one point, one group at a time, in float64."""

import math

import torch
from torch import Tensor


def inertia(points: Tensor, labels: Tensor, center: Tensor) -> Tensor:
    """Σ over the points of each class of the squared distance to the nearest center of the class."""
    total = torch.zeros(len(center), dtype=torch.float64)
    for x, c in zip(points.double(), labels.tolist(), strict=True):
        total[c] += min(float((x - mu.double()).square().sum()) for mu in center[c])
    return total


def log_density(x: Tensor, log_weight: Tensor, mean: Tensor, cov: list[Tensor]) -> float:
    """log Σ_k π_k N(x; μ_k, Σ_k) of one point, through torch.distributions."""
    terms = [
        float(log_weight[k]) + float(torch.distributions.MultivariateNormal(mean[k], cov[k]).log_prob(x))
        for k in range(len(mean))
    ]
    top = max(terms)
    return top + math.log(sum(math.exp(t - top) for t in terms))
