"""Gaussian mixtures of every class at once.

    q(x | c) = Σ_k π_ck N(x; μ_ck, v_ck + s)            v ≥ floor in every dimension; s: extra noise, 0 unless told
    E-step   r_mk ∝ π_ck N(x_m; μ_ck, v_ck)             M-step   π, μ, v = moments of the class under r

The floor keeps the likelihood bounded; since the M-step's objective has one maximum in each variance, cutting at the
floor is the exact constrained step, and the likelihood still never falls.

Source: Dempster, Laird & Rubin, "Maximum likelihood from incomplete data via the EM algorithm", JRSS B 1977.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from splitveil.check import at_least
from splitveil.mixtures.clustering import kmeans
from splitveil.mixtures.tiles import Part, Tiles, lay_out, one_hot

TINY = 1e-30  # keeps an empty sum divisible; below any mass a float32 weight can have

Covariance = Literal["diagonal", "full"]


@dataclass(frozen=True)
class Mixture:
    """One Gaussian mixture a class. `var` is diagonal, or full with one more axis."""

    log_weight: Float[Tensor, "class group"]
    mean: Float[Tensor, "class group dim"]
    var: Float[Tensor, "class group *dims"]

    @property
    def covariance(self) -> Covariance:
        """Which kind of covariance `var` holds."""
        return "diagonal" if self.var.ndim == 3 else "full"


@dataclass(frozen=True)
class Fitted:
    """A mixture and the mean log-likelihood before each round of EM; `history` never falls."""

    mixture: Mixture
    history: tuple[float, ...]


def fit_mixture(
    points: Float[Tensor, "point dim"],
    labels: Int[Tensor, "point"],
    *,
    n_classes: int,
    n_groups: int,
    generator: torch.Generator,
    start: Mixture | None = None,
    floor: float = 1e-6,
    covariance: Covariance = "diagonal",
    max_rounds: int = 100,
    tolerance: float = 1e-4,
) -> Fitted:
    """Fit one Gaussian mixture a class by EM, from K-means or from `start`.

    Rounds end when the mean log-likelihood rises by less than `tolerance` nats a point and dimension.

    Guarantees: the likelihood never falls; every variance (full: every eigenvalue) is ≥ `floor`.
    """
    at_least("floor", floor, 0)
    tiles = lay_out(points, labels, n_classes)
    mass = tiles.count.clamp_min(1).view(-1, 1)
    shift = points.new_zeros(n_classes, points.shape[1]).index_add_(0, labels, points) / mass
    if start is None:
        found = kmeans(points, labels, n_classes=n_classes, n_groups=n_groups, generator=generator, max_rounds=10)
        r = one_hot(tiles.to_slots(found.assignment), n_groups, tiles.real)
        now = _maximize(tiles, shift, r, floor, covariance)
    else:
        now = replace(start, mean=start.mean - shift[:, None])
    history: list[float] = []
    for _ in range(max_rounds):
        r, likelihood = _expect(tiles, shift, now)
        history.append(likelihood)
        if len(history) > 1 and history[-1] - history[-2] < tolerance * points.shape[1]:
            break
        now = _keep_absent(tiles.count, now, _maximize(tiles, shift, r, floor, now.covariance))
    return Fitted(replace(now, mean=now.mean + shift[:, None]), tuple(history))


def log_joint(
    points: Float[Tensor, "point dim"], labels: Int[Tensor, "point"], mixture: Mixture, *, noise_var: float = 0.0
) -> Float[Tensor, "point group"]:
    """log π_k + log N(x; μ_k, v_k + noise_var) for each group of the point's own class.

    Differentiable in the points and the mixture; needs point × group × dim numbers of memory.
    """
    gap = points[:, None] - mixture.mean.index_select(0, labels)
    if mixture.covariance == "diagonal":
        scale = mixture.var + noise_var
        square = (gap.square() * scale.reciprocal().index_select(0, labels)).sum(-1)
        log_det = scale.log().sum(-1)
    else:
        eye = torch.eye(points.shape[1], dtype=gap.dtype, device=gap.device)
        root = torch.linalg.cholesky(mixture.var + noise_var * eye)
        log_det = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        whiten = torch.linalg.solve_triangular(root, eye.expand_as(root), upper=False)
        square = torch.einsum("bkij,bkj->bki", whiten.index_select(0, labels), gap).square().sum(-1)
    constant = mixture.log_weight - 0.5 * (log_det + points.shape[1] * math.log(2 * math.pi))
    return constant.index_select(0, labels) - 0.5 * square


def log_density(
    points: Float[Tensor, "point dim"],
    labels: Int[Tensor, "point"],
    mixture: Mixture,
    *,
    noise_var: float = 0.0,
    chunk: int = 4096,
) -> Float[Tensor, "point"]:
    """log q(x | label) under the mixture with `noise_var` added to every variance, `chunk` points at a time."""
    pairs = zip(torch.split(points, chunk), torch.split(labels, chunk), strict=True)
    return torch.cat([log_joint(x, c, mixture, noise_var=noise_var).logsumexp(-1) for x, c in pairs])


def _expect(tiles: Tiles, shift: Tensor, now: Mixture) -> tuple[Tensor, float]:
    """Responsibilities and the mean log-likelihood."""
    r = now.mean.new_zeros(*tiles.real.shape, now.mean.shape[1])
    evidence = torch.zeros((), dtype=torch.float64, device=r.device)
    for part in replace(tiles, shift=shift).parts():
        joint = _part_joint(part, now)
        total = joint.logsumexp(-1, keepdim=True)
        evidence += (total[..., 0] * part.real).sum(dtype=torch.float64)
        r[part.where] = (joint - total).exp() * part.real.unsqueeze(-1)
    return r, float(evidence / tiles.count.sum())


def _part_joint(part: Part, now: Mixture) -> Tensor:
    """`log_joint` for tiles: two batched products instead of a difference for each point, group and dimension."""
    if now.covariance == "full":
        label = part.label.repeat_interleave(part.points.shape[1])
        return log_joint(part.points.flatten(0, 1), label, now).view(*part.real.shape, -1)
    precise = now.var.reciprocal()
    offset = (now.mean.square() * precise + now.var.log()).sum(-1) + now.mean.shape[-1] * math.log(2 * math.pi)
    square = part.points.square() @ precise[part.label].mT
    cross = part.points @ (now.mean * precise)[part.label].mT
    return (now.log_weight - 0.5 * offset)[part.label][:, None] - 0.5 * square + cross


def _maximize(tiles: Tiles, shift: Tensor, r: Tensor, floor: float, covariance: Covariance) -> Mixture:
    mass = r.new_zeros(len(tiles.count), r.shape[-1]).index_add_(0, tiles.label, r.sum(1))
    mean = r.new_zeros(*mass.shape, tiles.points.shape[1])
    square = torch.zeros_like(mean) if covariance == "diagonal" else mean.new_zeros(*mean.shape, mean.shape[-1])
    for part in replace(tiles, shift=shift).parts():
        mine = r[part.where]
        mean.index_add_(0, part.label, mine.mT @ part.points)
        if covariance == "diagonal":
            square.index_add_(0, part.label, mine.mT @ part.points.square())
        else:
            square.index_add_(0, part.label, torch.einsum("tsk,tsi,tsj->tkij", mine, part.points, part.points))
    log_weight = (mass / tiles.count.clamp_min(1).unsqueeze(-1)).clamp_min(TINY).log()
    share = mass.clamp_min(TINY).unsqueeze(-1)
    mean = mean / share
    if covariance == "diagonal":
        return Mixture(log_weight, mean, (square / share - mean.square()).clamp_min(floor))
    value, vector = torch.linalg.eigh(square / share.unsqueeze(-1) - mean.unsqueeze(-1) * mean.unsqueeze(-2))
    return Mixture(log_weight, mean, (vector * value.clamp_min(floor).unsqueeze(-2)) @ vector.mT)


def _keep_absent(count: Tensor, old: Mixture, new: Mixture) -> Mixture:
    """A class without points keeps the mixture it had."""

    def pick(a: Tensor, b: Tensor) -> Tensor:
        return torch.where((count == 0).view(-1, *[1] * (a.ndim - 1)), a, b)

    return Mixture(pick(old.log_weight, new.log_weight), pick(old.mean, new.mean), pick(old.var, new.var))
