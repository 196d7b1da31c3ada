"""Correlated spread: a class as one Gaussian of low-rank plus diagonal covariance, instead of a diagonal one.

    Ŝ = U diag(λ) Uᵀ + diag(d) + σ²I        U: remembered directions;  λ, d: variances of the batch along and beside U
    D · penalty = Σ_c (M_c/B) ½[ log det(Ŝ/σ²) + tr(Ŝ⁻¹(Σ_c + σ²I)) − D ]

The trace is kept, so this is a cross-entropy and an in-sample bound whatever U is; with U = 0 it is plain class spread.
Where dimensions move together it is far below it: D equal dimensions cost one logarithm, not D. U comes from subspace
iteration over the reservoir at the end of an epoch; determinant and inverse from the rank × rank matrix

    M = I + Λ^½ Uᵀ A⁻¹ U Λ^½,   A = diag(d) + σ²I          log det Ŝ = log det A + log det M          (Woodbury)
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from splitveil.check import at_least
from splitveil.mixtures.tiles import lay_out
from splitveil.randomness import stream
from splitveil.regularizers.base import Progress
from splitveil.regularizers.entropy.groupings.base import Space
from splitveil.regularizers.entropy.information import spread_nats
from splitveil.regularizers.entropy.members import Members, total
from splitveil.regularizers.entropy.meter import Entry, Meter
from splitveil.regularizers.entropy.metered import Draws, Metered, Purpose, Worth
from splitveil.regularizers.entropy.parallel import agree, world
from splitveil.regularizers.entropy.reservoir import Reservoir
from splitveil.regularizers.entropy.settings import Memory
from splitveil.regularizers.entropy.vectors import ToVectors

N_ITERATIONS = 4  # of the subspace; directions need only be good, the bound holds for any
TINY = 1e-12  # keeps the gradient of √λ finite where a direction carries nothing


@final
class Correlated(Metered):
    """Log-determinant of a low-rank plus diagonal class covariance; `rank` directions a class."""

    remembers = True
    recorded = ("fit",)  # small factorizations of the charge go through a library that cannot be recorded
    directions: Tensor

    def __init__(
        self,
        *,
        rank: int = 8,
        memory: Memory | None = None,
        vectors: ToVectors | None = None,
        gauge_every: int = 16,
    ) -> None:
        super().__init__()
        self.rank = int(at_least("rank", rank, 1))
        self.memory = memory or Memory()
        self.meter = Meter(vectors=vectors, gauge_every=gauge_every)
        self.reservoir = Reservoir(capacity=self.memory.capacity)

    def build(self, space: Space) -> None:
        self.meter.build(space)
        self.reservoir.build(space.dim, like=space.like)
        self.register_buffer("directions", space.like.new_zeros(space.n_classes, space.dim, min(self.rank, space.dim)))

    def shapes(self, purpose: Purpose, entry: Entry, *, has_gauges: bool) -> Mapping[str, tuple[int, ...]]:
        return {}

    def value(self, members: Members, draws: Draws, *, has_gauges: bool) -> Worth:
        nats, plain = correlated_nats(members, self.directions.index_select(0, members.label))
        of_class = members.share * members.is_charged
        gauges: dict[str, Tensor] = {}
        if has_gauges:
            gauges = {"charged": (of_class * nats.detach()).sum(), "P": (of_class * plain.detach()).sum()}
        return (of_class * nats).sum() / members.z.shape[1], gauges

    def remember(self, z: Tensor, y: Tensor) -> None:
        self.reservoir.add(z, y)

    def end_epoch(self, progress: Progress) -> None:
        if (progress.epoch + 1) % self.memory.refit_every or not len(self.reservoir):
            return
        points, labels = self.reservoir.held()
        self.reservoir.clear()
        if len(points):
            start = torch.randn(self.directions.shape, generator=stream(progress.seed, "entropy", "directions"))
            self.directions.copy_(principal(points, labels, start.to(points)))
            agree(self.directions, world())


def correlated_nats(
    members: Members, directions: Float[Tensor, "row dim rank"]
) -> tuple[Float[Tensor, "row"], Float[Tensor, "row"]]:
    """The bound of each class, and the plain one beside it."""
    n, row, dim, s = members.n_rows, members.row, members.z.shape[1], members.noise_var
    per = members.count.clamp_min(1).reciprocal().unsqueeze(-1)
    gap = members.z - (total(members.z, row, n) * per).index_select(0, row)
    own = directions.index_select(0, row)
    along = torch.einsum("md,mdr->mr", gap, own)
    beside = gap - torch.einsum("mr,mdr->md", along, own)
    size = (total(along.square(), row, n) * per + TINY).sqrt()
    a = total(beside.square(), row, n) * per + s
    var = total(gap.square(), row, n) * per
    root = directions * size.unsqueeze(1)  # U Λ^½
    inner = torch.eye(root.shape[2], dtype=root.dtype, device=root.device) + root.mT @ (root / a.unsqueeze(-1))
    lower, _ = torch.linalg.cholesky_ex(inner)  # _ex: asks nothing of the device
    whiten = torch.linalg.solve_triangular(lower, root.mT / a.unsqueeze(1), upper=False)  # L⁻¹ Λ^½ Uᵀ A⁻¹
    log_det = (a / s).log().sum(-1) + 2 * lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    seen = torch.einsum("mrd,md->mr", whiten.index_select(0, row), gap).square().sum(-1)
    trace = ((var + s) / a).sum(-1) - total(seen, row, n) * per[:, 0] - s * whiten.square().sum((1, 2))
    nats = 0.5 * (log_det + trace - dim)
    return torch.where(members.count > 0, nats, 0.0), spread_nats(var, s)


def principal(
    points: Float[Tensor, "point dim"], labels: Int[Tensor, "point"], start: Float[Tensor, "class dim rank"]
) -> Float[Tensor, "class dim rank"]:
    """Orthonormal directions of most variance in each class, by subspace iteration; 0 for a class without points."""
    tiles = lay_out(points, labels, len(start))
    tiles = replace(tiles, shift=tiles.class_mean())
    found = torch.linalg.qr(start).Q
    for _ in range(N_ITERATIONS):
        product = torch.zeros_like(found)
        for part in tiles.parts():
            real = part.points * part.real.unsqueeze(-1)
            product.index_add_(0, part.label, real.mT @ (real @ found[part.label]))
        found = torch.linalg.qr(product + 1e-12 * found).Q
    return torch.where((tiles.count > 1).view(-1, 1, 1), found, 0.0)
