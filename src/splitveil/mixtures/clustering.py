"""K-means of every class at once.

    minimize Σ_m ‖x_m − μ_{c(m), k(m)}‖²            seeds by greedy D² sampling on a sample, then Lloyd's rounds on all

A round reads every tile once: distances to the centers of its class as one batched product, the nearest, and the sums
of the next centers as another, while the tile is in cache. Seeding looks at a sample of each class, several times over,
and keeps the best: it only has to find a good basin.

Source: Arthur & Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from splitveil.check import at_least
from splitveil.mixtures.tiles import Part, Tiles, lay_out, one_hot, sample

FEW = 0.2  # share of points that changed groups below which sums are corrected instead of taken anew
SEEDING_SAMPLE = 48  # points a group that seeding looks at: rounds over all points follow, and mend a poor start
TINY = 1e-30  # keeps a rate of 0 divisible; below any squared distance that matters in float32


@dataclass(frozen=True)
class Clusters:
    """What K-means found. A class without points has weight 0 and keeps its starting centers (zeros at first)."""

    center: Float[Tensor, "class group dim"]
    var: Float[Tensor, "class group"]  # mean squared distance from the center, a dimension
    weight: Float[Tensor, "class group"]  # share of the class's points
    assignment: Int[Tensor, "point"]
    inertia: Float[Tensor, "class"]
    n_rounds: int


@dataclass(frozen=True)
class _Sweep:
    """One pass over all points with given centers: who is nearest, and the sums the next centers are made of."""

    choice: Int[Tensor, "tile slot"]
    far: Float[Tensor, "tile slot"]  # squared distance to the nearest center
    mass: Float[Tensor, "class group"]
    total: Float[Tensor, "class group dim"]
    moved: float  # share of points in another group than before

    @property
    def inertia(self) -> float:
        return float(self.far.sum(dtype=torch.float64))


def kmeans(
    points: Float[Tensor, "point dim"],
    labels: Int[Tensor, "point"],
    *,
    n_classes: int,
    n_groups: int,
    generator: torch.Generator,
    start: Float[Tensor, "class group dim"] | None = None,
    seed_weight: Float[Tensor, "point"] | None = None,
    restarts: int = 3,
    max_rounds: int = 100,
    tolerance: float = 1e-4,
) -> Clusters:
    """Divide the points of every class into `n_groups` groups about their means.

    `start` continues from known centers; otherwise seeds are drawn by D² sampling (times `seed_weight` where given),
    `restarts` times, and each class keeps its best.
    Rounds end when the inertia falls by less than `tolerance` of itself. A group that loses all its points is put on
    the point of its class that lies farthest from its center.

    Guarantees: the inertia never exceeds that of the starting centers; no group is empty in a class that has at least
    `n_groups` distinct points; a class with no more points than groups has inertia 0.
    """
    at_least("n_groups", n_groups, 1)
    tiles = lay_out(points, labels, n_classes)
    if start is None:
        chance = torch.ones_like(points[:, 0]) if seed_weight is None else seed_weight.to(points.dtype)
        center = _seed(points, labels, chance, n_classes, n_groups, generator, restarts)
    else:
        center = start.to(points, copy=True)
    center, last, n_rounds = _lloyd(tiles.about(center.mean(1)), center, max_rounds, tolerance)
    square = torch.zeros_like(last.mass)
    square.index_add_(0, tiles.label, (one_hot(last.choice, n_groups, tiles.real).mT @ last.far.unsqueeze(-1))[..., 0])
    var = square / (last.mass.clamp_min(1) * points.shape[1])
    weight = last.mass / tiles.count.clamp_min(1).unsqueeze(-1)
    return Clusters(center, var, weight, tiles.to_points(last.choice), square.sum(1), n_rounds)


def _shift(tiles: Tiles) -> Tensor:
    assert tiles.shift is not None
    return tiles.shift[:, None]


def _distances(part: Part, center: Tensor, size: Tensor) -> Tensor:
    """Squared distance of every slot to every center of its class; `size` is ‖x‖² of the slots."""
    own = center[part.label]
    return torch.baddbmm(own.square().sum(-1).unsqueeze(1), part.points, own.mT, alpha=-2).add_(size).clamp_min_(0)


def _sizes(tiles: Tiles) -> Tensor:
    return torch.cat([torch.linalg.vector_norm(part.points, dim=-1, keepdim=True).square() for part in tiles.parts()])


def _sweep(tiles: Tiles, center: Tensor, size: Tensor, before: _Sweep | None) -> _Sweep:
    choice = torch.empty(tiles.real.shape, dtype=torch.long, device=center.device)
    far = center.new_empty(tiles.real.shape)
    corrects = before is not None and tiles.laid is not None and before.moved < FEW
    mass, total = center.new_zeros(center.shape[:2]), torch.zeros_like(center)
    for part in tiles.parts():
        least, nearest = _distances(part, center, size[part.where]).min(-1)
        choice[part.where], far[part.where] = nearest, least * part.real
        if not corrects:
            mine = one_hot(nearest, center.shape[1], part.real)
            mass.index_add_(0, part.label, mine.sum(1))
            total.index_add_(0, part.label, mine.mT @ part.points)
    if before is None:
        return _Sweep(choice, far, mass, total, 1.0)
    moved = ((choice != before.choice) & (tiles.real > 0)).flatten().nonzero().flatten()
    if corrects:
        mass, total = _corrected(tiles, before, choice, moved)
    return _Sweep(choice, far, mass, total, len(moved) / len(tiles.points))


def _corrected(tiles: Tiles, before: _Sweep, choice: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
    """The sums after the points `moved` have changed groups."""
    assert tiles.laid is not None
    points = tiles.laid.flatten(0, 1).index_select(0, moved)
    first = (tiles.label * before.mass.shape[1]).unsqueeze(1)
    old, new = ((first + c).flatten().index_select(0, moved) for c in (before.choice, choice))
    mass, total = before.mass.flatten().clone(), before.total.flatten(0, 1).clone()
    ones = torch.ones_like(points[:, 0])
    total.index_add_(0, new, points).index_add_(0, old, points, alpha=-1)
    mass.index_add_(0, new, ones).index_add_(0, old, ones, alpha=-1)
    return mass.view_as(before.mass), total.view_as(before.total)


def _lloyd(tiles: Tiles, center: Tensor, max_rounds: int, tolerance: float) -> tuple[Tensor, _Sweep, int]:
    """Lloyd's rounds about a point inside each class: ‖x‖² − 2⟨x, μ⟩ + ‖μ‖² cancels far from the origin."""
    center, size = center - _shift(tiles), _sizes(tiles)
    now = _sweep(tiles, center, size, None)
    inertia, n_rounds, busy = now.inertia, 0, True
    while busy and n_rounds < max_rounds:
        mass = now.mass.unsqueeze(-1)
        center = torch.where(mass > 0, now.total / mass.clamp_min(1), center)
        moved = _reseed(tiles, center, now)
        now = _sweep(tiles, center, size, now)
        before, inertia, n_rounds = inertia, now.inertia, n_rounds + 1
        busy = moved or before - inertia > tolerance * inertia
    return center + _shift(tiles), now, n_rounds


def _reseed(tiles: Tiles, center: Tensor, now: _Sweep) -> bool:
    """Put the empty groups of a class on its farthest points, the j-th on the j-th. Rare, so class by class."""
    empty = (now.mass == 0) & (tiles.count > 0).unsqueeze(-1)
    moved = False
    for c in empty.any(-1).nonzero().flatten().tolist():
        mine = tiles.label == c
        groups = empty[c].nonzero().flatten()
        far, slot = now.far[mine].flatten().topk(min(len(groups), int(tiles.count[c])))
        index = tiles.index[mine].flatten()[slot[far > TINY]]
        center[c, groups[: len(index)]] = tiles.points[index] - _shift(tiles)[c]
        moved |= len(index) > 0
    return moved


def _seed(
    points: Tensor,
    labels: Tensor,
    chance: Tensor,
    n_classes: int,
    n_groups: int,
    generator: torch.Generator,
    restarts: int,
) -> Tensor:
    """The best of several seedings of each class, judged on a sample."""
    few = sample(labels, SEEDING_SAMPLE * n_groups, generator)
    tiles = lay_out(points[few], labels[few], n_classes)
    tiles = tiles.about(tiles.class_mean())
    rate = tiles.to_slots(chance[few]) * tiles.real
    best = points.new_full((n_classes,), torch.inf)
    kept = points.new_zeros(n_classes, n_groups, points.shape[1])
    for _ in range(restarts):
        center, end, _ = _lloyd(tiles, _seed_once(tiles, rate, n_groups, generator), 20, 1e-4)
        inertia = torch.zeros_like(best).index_add_(0, tiles.label, end.far.sum(1))
        kept = torch.where((inertia < best).view(-1, 1, 1), center, kept)
        best = torch.minimum(best, inertia)
    return kept


def _seed_once(tiles: Tiles, rate: Tensor, n_groups: int, generator: torch.Generator) -> Tensor:
    """Greedy D² sampling: each next center is the best of a few points drawn in proportion to their distance²."""
    n_classes = len(tiles.count)
    center = rate.new_zeros(n_classes, n_groups, tiles.points.shape[1])
    far, size = torch.full_like(tiles.real, torch.inf), _sizes(tiles)
    for k in range(n_groups):
        drawn = _draw(tiles, rate if k == 0 else rate * far, 2 + int(math.log(n_groups)), generator)
        offset = drawn - _shift(tiles)
        gap = torch.cat([_distances(part, offset, size[part.where]) for part in tiles.parts()])
        gap = torch.minimum(gap, far.unsqueeze(-1)) * tiles.real.unsqueeze(-1)
        best = rate.new_zeros(drawn.shape[:2]).index_add_(0, tiles.label, gap.sum(1)).argmin(-1)
        center[:, k] = drawn[torch.arange(n_classes, device=best.device), best]
        far = gap.gather(-1, best[tiles.label].view(-1, 1, 1).expand(-1, gap.shape[1], 1))[..., 0]
    return center


def _draw(tiles: Tiles, rate: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """`n` points a class, each drawn in proportion to `rate`: the least of exponential clocks of those rates."""
    clock = torch.empty(*rate.shape, n, dtype=rate.dtype, device=generator.device).exponential_(generator=generator)
    clock = torch.where(
        tiles.real.unsqueeze(-1) > 0, clock.to(rate.device) / rate.clamp_min(TINY).unsqueeze(-1), torch.inf
    )
    label = tiles.label.repeat_interleave(rate.shape[1]).unsqueeze(-1).expand(-1, n)
    clock = clock.flatten(0, 1)
    least = clock.new_full((len(tiles.count), n), torch.inf).scatter_reduce_(0, label, clock, "amin")
    order = torch.arange(len(clock), device=clock.device).unsqueeze(-1)
    first = torch.where(clock == least.gather(0, label), order, -1)
    winner = first.new_zeros(least.shape).scatter_reduce_(0, label, first, "amax")
    return tiles.points[tiles.index.flatten()[winner]]
