"""The best affine reconstruction, in closed form.

    x̂ = mean_x + W (z_sent − mean_z),      W = C_xz (C_zz + λ s I)⁻¹,      s = mean eigenvalue of C_zz

λ is chosen on the selection images, all from one eigendecomposition. With enough pairs this is the optimal attack
wherever x and z_sent are jointly Gaussian, and a fast, strong baseline elsewhere.

More than 4,096 features are looked at in as many directions: z_sent Q, the columns of Q an orthonormal basis of what
the attacker's own images send, each the mean of 16 draws. W lies in the span of what it is fitted to, so that little is
lost, and noise is drawn as often as for fewer features. Where answers are recorded and few, so that noise is not drawn
anew, all is in the Gram matrix of the pairs: with C_zz = ZᵀZ, ZZᵀ = QΛQᵀ:  Wᵀ = ZᵀQ (Λ + λ s)⁻¹ Qᵀ X.

Sums (or rows), eigenvectors and scores are kept beside the fit: stopped and called again it goes on from there.
"""

from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from splitveil.attacks.base import Attack, Course, Health, Inverter, Need
from splitveil.attacks.gathering import Gathering
from splitveil.attacks.keeping import Found, beside, once
from splitveil.attacks.knowledge import Knowledge
from splitveil.attacks.pairs import ChangedPairs, Pairs, PairSource, Seen
from splitveil.fitting import Shuffled
from splitveil.metrics import mse
from splitveil.randomness import SeededSource
from splitveil.types import Images

ROWS_PER_FEATURE = 32  # noise is drawn anew until each feature has this many rows: costs about 1/32 of the error
MAX_ROWS = 65_536
MAX_SIDE = 4096  # of the matrix that is decomposed (128 MB in float64), and directions that more features are seen in
MAX_GRAM = 4096  # recorded pairs that are solved for by their Gram matrix
DRAWS = 16  # of an image's noise, whose mean gives a direction
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
        selection = known.selection.first(N_SCORED, source=SeededSource(seed, "ridge", "selection"))
        gathering = Gathering.before(course, selection.x)
        solution = _solve(known.pairs, course, gathering)
        scores = _scores(solution, selection, gathering)
        own = known.pairs.first(N_SCORED, source=SeededSource(seed, "ridge", "own"))
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


def _scores(solution: _Solution, selection: Pairs, gathering: Gathering) -> list[float]:
    """The error on selection images at each λ."""
    scores = torch.full((len(STRENGTHS),), torch.inf, dtype=torch.float64)

    def add(i: int) -> None:
        scores[i] = mse(selection.x, solution.at(STRENGTHS[i])(selection.seen)).mean().item()
        gathering.score = scores.min().item()

    gathering.gather("ridge-scores", len(STRENGTHS), {"scores": scores}, add, tell=1)
    return [float(score) for score in scores]


def _solve(pairs: PairSource, course: Course, gathering: Gathering) -> _Solution:
    first = pairs.first(2, source=SeededSource(course.seed, "ridge", "shape"))
    if first.seen.z_sent[0, 0].numel() <= MAX_SIDE:
        return _by_covariance(pairs, first, course, gathering)
    if not pairs.is_fresh and len(pairs) <= MAX_GRAM:
        return _by_gram(pairs, first, course, gathering)
    directions = _directions(pairs, first, course, gathering)

    def look(seen: Seen) -> Seen:
        return Seen(seen.z_sent[:1].flatten(2) @ directions, seen.y)

    found = _by_covariance(ChangedPairs(pairs, look), Pairs(first.x, look(first.seen)), course, gathering)
    basis = directions.double()
    return replace(found, left=basis @ found.left, mean_z=basis @ found.mean_z)


def _directions(pairs: PairSource, like: Pairs, course: Course, gathering: Gathering) -> Float[Tensor, "dim direction"]:
    """An orthonormal basis of what is sent of the attacker's own images."""
    kept = like.seen.z_sent.new_zeros(MAX_SIDE, like.seen.z_sent[0, 0].numel())
    draws = [_Rows(pairs, MAX_SIDE, course.seed, f"direction-{k}") for k in range(DRAWS if pairs.is_fresh else 1)]

    def add(i: int) -> None:
        place = slice(i * CHUNK, (i + 1) * CHUNK)
        kept[place] = sum(rows(i)[0] for rows in draws) / len(draws)

    gathering.gather("ridge-directions", len(draws[0]), {"z": kept}, add)
    basis: Tensor = torch.linalg.qr((kept - kept.mean(0)).T).Q
    return basis


def _by_covariance(pairs: PairSource, like: Pairs, course: Course, gathering: Gathering) -> _Solution:
    dim, shape = like.seen.z_sent[0, 0].numel(), like.x.shape[1:]
    n_passes = -(-min(MAX_ROWS, ROWS_PER_FEATURE * dim) // len(pairs))  # whole ones: each image counts the same
    pixels, count = shape.numel(), n_passes * len(pairs)
    total = torch.zeros(dim + pixels, dtype=torch.float64, device=pairs.device)
    products = torch.zeros(dim, dim + pixels, dtype=torch.float64, device=pairs.device)
    rows = _Rows(pairs, count, course.seed)

    def add(i: int) -> None:
        z, x = rows(i)
        z = z.double()
        both = torch.cat([z, x], 1)
        total.add_(both.sum(0))
        products.add_(z.T @ both)

    gathering.gather("ridge-sums", len(rows), {"total": total, "products": products}, add)
    mean = total / count
    covariance = products / count - torch.outer(mean[:dim], mean)
    values, vectors = _axes(covariance[:, :dim], course)
    right = vectors.T @ covariance[:, dim:]
    return _Solution(vectors, values, right, _unit(values, dim), mean[:dim], mean[dim:].reshape(1, *shape))


def _by_gram(pairs: PairSource, like: Pairs, course: Course, gathering: Gathering) -> _Solution:
    n, shape = len(pairs), like.x.shape[1:]
    kept_z, kept_x = (each[0].flatten().new_zeros(n, each[0].numel()) for each in (like.seen.z_sent[0], like.x))
    rows = _Rows(pairs, n, course.seed)

    def add(i: int) -> None:
        place = slice(i * CHUNK, (i + 1) * CHUNK)
        kept_z[place], kept_x[place] = rows(i)

    gathering.gather("ridge-rows", len(rows), {"z": kept_z, "x": kept_x}, add)
    z, x = kept_z.double(), kept_x.double()
    mean_z, mean_x = z.mean(0), x.mean(0)
    z, x = z - mean_z, x - mean_x
    values, vectors = _axes(z @ z.T, course)
    unit = _unit(values, z.shape[1])
    return _Solution(z.T @ vectors, values, vectors.T @ x, unit, mean_z, mean_x.reshape(1, *shape))


def _axes(
    matrix: Float64[Tensor, "rank rank"], course: Course
) -> tuple[Float64[Tensor, " rank"], Float64[Tensor, "rank rank"]]:
    """Eigenvalues and eigenvectors, found once; kept ones come in the memory order of fresh ones, bit by bit."""

    def find() -> Found:
        values, vectors = torch.linalg.eigh(matrix)
        return {"values": values, "vectors": vectors.T.contiguous()}  # a column after the other, as they are found

    found = once(beside(course.state, "ridge-axes"), find, device=matrix.device)
    return found["values"].clone(), found["vectors"].clone().T  # aligned anew: products may depend on it


def _unit(values: Float64[Tensor, " rank"], dim: int) -> float:
    """Mean eigenvalue over all `dim` directions; never 0, so that constant features give the mean image."""
    return max(values.sum().item() / dim, torch.finfo(torch.float32).tiny)


@final
class _Rows:
    """`n_rows` rows (z_sent, x) in chunks: every image once before any comes again, with fresh noise each time."""

    def __init__(self, pairs: PairSource, n_rows: int, seed: int, *purpose: str) -> None:
        order = Shuffled(len(pairs), size=len(pairs), seed=seed, device=pairs.device)
        passes = [order(i) for i in range(-(-n_rows // len(pairs)))]
        self._pairs, self._seed, self._purpose = pairs, seed, purpose
        self._chunks = torch.split(torch.cat(passes)[:n_rows], CHUNK)

    def __len__(self) -> int:
        return len(self._chunks)

    def __call__(self, i: int) -> tuple[Float[Tensor, "row dim"], Float[Tensor, "row pixel"]]:
        drawn = self._pairs.draw(self._chunks[i], source=SeededSource(self._seed, "ridge", *self._purpose, i))
        return drawn.seen.z_sent[0].flatten(1), drawn.x.flatten(1)
