"""The best affine reconstruction, in closed form.

    x̂ = mean_x + W (z_sent − mean_z),      W = C_xz (C_zz + λ s I)⁻¹,      s = mean eigenvalue of C_zz

λ is chosen on the selection images, all from one eigendecomposition. With enough pairs this is the optimal attack
wherever x and z_sent are jointly Gaussian, and a fast, strong baseline elsewhere. Where features outnumber pairs the
same solution comes from the Gram matrix of the pairs: with C_zz = ZᵀZ, ZZᵀ = QΛQᵀ:  Wᵀ = ZᵀQ (Λ + λ s)⁻¹ Qᵀ X.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from splitveil.attacks.base import Attack, Course, Health, Inverter, Need
from splitveil.attacks.knowledge import Knowledge
from splitveil.attacks.pairs import PairSource, Seen
from splitveil.fitting import Shuffled
from splitveil.metrics import mse
from splitveil.randomness import SeededSource
from splitveil.types import Images

ROWS_PER_FEATURE = 32  # noise is drawn anew until each feature has this many rows: costs about 1/32 of the error
MAX_ROWS = 65_536
MAX_SIDE = 2048  # of the matrix that is decomposed; more features than this go through the pairs' Gram matrix
MAX_GRAM = 4096  # pairs in that Gram matrix (128 MB in float64)
CHUNK = 256  # images asked at once: larger batches leave a CPU's cache and take twice as long
STRENGTHS = tuple(10.0**k for k in range(-8, 3))  # λ
N_SCORED = 1000  # images that λ is chosen on


@final
@dataclass(frozen=True)
class Ridge(Attack):
    """Affine least squares from z_sent to the image."""

    @property
    def name(self) -> str:
        return "ridge"

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({Need.PAIRS})

    def _fit(self, known: Knowledge, course: Course) -> Inverter:
        assert known.pairs is not None
        assert known.selection is not None
        seed = course.seed
        solution = _solve(known.pairs, seed)
        selection = known.selection.first(N_SCORED, source=SeededSource(seed, "ridge", "selection"))
        own = known.pairs.first(N_SCORED, source=SeededSource(seed, "ridge", "own"))
        scores = [mse(selection.x, solution.at(strength)(selection.seen)).mean().item() for strength in STRENGTHS]
        best = min(range(len(scores)), key=scores.__getitem__)
        chosen = solution.at(STRENGTHS[best])
        return solution.at(STRENGTHS[best], Health(mse(own.x, chosen(own.seen)).mean().item(), scores[best]))


@final
class _Affine(Inverter):
    """x̂ = W (z_sent − mean_z) + mean_x, kept in [0, 1]."""

    def __init__(
        self, weight: Float[Tensor, "dim pixel"], mean_z: Float[Tensor, " dim"], mean_x: Images, health: Health
    ) -> None:
        self._weight, self._mean_z, self._mean_x, self._health = weight, mean_z, mean_x, health

    @property
    def health(self) -> Health:
        return self._health

    def __call__(self, seen: Seen) -> Images:
        centered = seen.z_sent[0].flatten(1) - self._mean_z
        return ((centered @ self._weight).reshape(-1, *self._mean_x.shape[1:]) + self._mean_x).clamp(0, 1)


@dataclass(frozen=True)
class _Solution:
    """Wᵀ = left (values + λ s)⁻¹ right for every λ."""

    left: Float64[Tensor, "dim rank"]
    values: Float64[Tensor, " rank"]
    right: Float64[Tensor, "rank pixel"]
    unit: float  # s
    mean_z: Float64[Tensor, " dim"]
    mean_x: Float64[Tensor, "1 channel height width"]

    def at(self, strength: float, health: Health | None = None) -> _Affine:
        """The map at one λ."""
        damped = self.values.clamp_min(0) + strength * self.unit
        weight = self.left @ (self.right / damped[:, None])
        return _Affine(weight.float(), self.mean_z.float(), self.mean_x.float(), health or Health())


def _solve(pairs: PairSource, seed: int) -> _Solution:
    first = pairs.first(2, source=SeededSource(seed, "ridge", "shape"))
    dim = first.seen.z_sent[0, 0].numel()
    shape = first.x.shape[1:]
    return _by_covariance(pairs, dim, shape, seed) if dim <= MAX_SIDE else _by_gram(pairs, shape, seed)


def _by_covariance(pairs: PairSource, dim: int, shape: torch.Size, seed: int) -> _Solution:
    n_passes = -(-min(MAX_ROWS, ROWS_PER_FEATURE * dim) // len(pairs))  # whole ones: each image counts the same
    pixels = shape.numel()
    total = torch.zeros(dim + pixels, dtype=torch.float64, device=pairs.device)
    products = torch.zeros(dim, dim + pixels, dtype=torch.float64, device=pairs.device)
    count = 0
    for z, x in _rows(pairs, n_passes * len(pairs), seed):
        both = torch.cat([z, x], 1)
        total += both.sum(0)
        products += z.T @ both
        count += len(z)
    mean = total / count
    covariance = products / count - torch.outer(mean[:dim], mean)
    values, vectors = torch.linalg.eigh(covariance[:, :dim])
    right = vectors.T @ covariance[:, dim:]
    return _Solution(vectors, values, right, _unit(values, dim), mean[:dim], mean[dim:].reshape(1, *shape))


def _by_gram(pairs: PairSource, shape: torch.Size, seed: int) -> _Solution:
    chunks = list(_rows(pairs, min(len(pairs), MAX_GRAM), seed))
    z, x = torch.cat([z for z, _ in chunks]), torch.cat([x for _, x in chunks])
    mean_z, mean_x = z.mean(0), x.mean(0)
    z, x = z - mean_z, x - mean_x
    values, vectors = torch.linalg.eigh(z @ z.T)
    unit = _unit(values, z.shape[1])
    return _Solution(z.T @ vectors, values, vectors.T @ x, unit, mean_z, mean_x.reshape(1, *shape))


def _unit(values: Float64[Tensor, " rank"], dim: int) -> float:
    """Mean eigenvalue over all `dim` directions; never 0, so that constant features give the mean image."""
    return max(values.sum().item() / dim, torch.finfo(torch.float32).tiny)


def _rows(pairs: PairSource, n_rows: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """`n_rows` rows (z_sent, x) in float64: every image once before any comes again, with fresh noise each time."""
    order = Shuffled(len(pairs), size=len(pairs), seed=seed, device=pairs.device)
    passes = [order(i) for i in range(-(-n_rows // len(pairs)))]
    for i, index in enumerate(torch.split(torch.cat(passes)[:n_rows], CHUNK)):
        drawn = pairs.draw(index, source=SeededSource(seed, "ridge", i))
        yield drawn.seen.z_sent[0].flatten(1).double(), drawn.x.flatten(1).double()
