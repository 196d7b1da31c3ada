"""An error no attack on these images can go below: two images that look alike on the wire cannot both be right.

    x, x' two images of one class, drawn alike;   δ = ‖c(x) − c(x')‖ √T / σ
    MSE ≥ E[ g(δ) ‖x − x'‖²/d ]          g(δ) = ½ ∫ pq/(p + q) = ¼ e^(−δ²/8) E_t sech(δt/2),   p, q = N(0,1), N(δ,1)

Proof: whatever an attack answers, a, after seeing s, p‖a − x‖² + q‖a − x'‖² ≥ pq/(p + q) ‖x − x'‖²; integrate over s
and average over pairs, in which each image stands on both sides equally often. No density of images is assumed, and the
attack may know the class. An image that is the only one of its class stands in no pair and adds nothing: two of them
count as a pair with 0. It says something only where the noise is about as large as the distance between features:
g(0) = 1/4 gives half the variance within a class, and g(10) is below 1e-6.

The interval is a bootstrap over pairs, and of few it is too narrow: its lower end lies above the value of all pairs far
more often than the 2.5 % it promises (of one pair, about half the time). From LEAST_PAIRS on the tests hold it to 8 %.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from splitveil.bounds.base import MSE, Bound, Kind, Side
from splitveil.bounds.parts import Encoded
from splitveil.check import UsageError, at_least
from splitveil.data import Part
from splitveil.metrics import interval
from splitveil.randomness import stream

CHUNK = 1000  # pairs of images at once
LEAST_PAIRS = 30  # of which an interval can be believed
FARTHEST = 20.0  # g(20) < 1e-22: counted as 0, which only lowers the bound
NODES = 1601  # of a trapezoid on ±8: its error is below 1e-15 for every δ < 20, since sech is analytic near the line

HOLDS_IF = ("the images are drawn as those it was read on", "the interval, over pairs of images, holds")


@torch.no_grad()
def two_point(known: Encoded, images: Part, *, releases: int = 1, seed: int = 0) -> Bound:
    """The bound on the MSE of every attack, estimated on disjoint pairs of `images`, which `known.read` encodes."""
    at_least("releases", releases, 1)
    classes = known.read.classes
    if (lacking := too_few(classes)) is not None:
        raise UsageError(lacking)
    one, other = pairs(classes, stream(seed, "bounds", "pairs"))
    z, std = known.read.z.double(), known.channel.std_after(releases)
    found = blur((z[one] - z[other]).norm(dim=1) / std) * _apart(images, one, other)
    alone = int((torch.bincount(classes) == 1).sum())
    span = interval(torch.cat([found, found.new_zeros((alone + 1) // 2)]))
    return Bound(
        name="two points",
        quantity=MSE,
        value=span.mean,
        side=Side.AT_LEAST,
        kind=Kind.SAMPLED,
        holds_if=HOLDS_IF,
        interval=(span.low, span.high),
        releases=releases,
        label_known=known.n_classes > 1,  # pairs of one class; without classes they are pairs of anything
    )


def blur(distance: Float[Tensor, " pair"]) -> Float[Tensor, " pair"]:
    """g(δ): between 1/4, nothing can be told, and 0.

    >>> blur(torch.tensor([0.0, 30.0], dtype=torch.float64)).tolist()
    [0.25, 0.0]
    """
    t = torch.linspace(-8, 8, NODES, dtype=distance.dtype, device=distance.device)
    weight = torch.exp(-t.square() / 2)
    near = distance.clamp_max(FARTHEST)
    mean = torch.cosh(near[:, None] * t / 2).reciprocal() @ (weight / weight.sum())
    return torch.where(distance < FARTHEST, torch.exp(-near.square() / 8) * mean / 4, torch.zeros_like(near))


def _apart(images: Part, one: Tensor, other: Tensor) -> Float[Tensor, " pair"]:
    """‖x − x'‖²/d."""
    chunks = zip(torch.split(one, CHUNK), torch.split(other, CHUNK), strict=True)
    return torch.cat([(images.images(a) - images.images(b)).double().square().flatten(1).mean(1) for a, b in chunks])


def pairs(
    labels: Int[Tensor, " image"], generator: torch.Generator
) -> tuple[Int[Tensor, " pair"], Int[Tensor, " pair"]]:
    """Places of random disjoint pairs of one class."""
    mixed = torch.randperm(len(labels), generator=generator, device=generator.device).to(labels.device)
    order = mixed[torch.argsort(labels[mixed], stable=True)]
    count = torch.bincount(labels)
    rank = torch.arange(len(labels), device=labels.device) - (count.cumsum(0) - count)[labels[order]]
    first = (rank % 2 == 0) & (rank + 1 < count[labels[order]])
    place = first.nonzero()[:, 0]
    return order[place], order[place + 1]


def count_pairs(labels: Int[Tensor, " image"]) -> int:
    """How many disjoint pairs of one class there are.

    >>> count_pairs(torch.tensor([0, 0, 0, 1, 2, 2]))
    2
    """
    return int((torch.bincount(labels) // 2).sum())


def too_few(labels: Int[Tensor, " image"]) -> str | None:
    """One line if there are too few pairs for the bound, else None."""
    n_pairs = count_pairs(labels)
    if n_pairs >= LEAST_PAIRS:
        return None
    return f"two points: needs {LEAST_PAIRS} pairs of images of one class, got {n_pairs}; give more victims"
