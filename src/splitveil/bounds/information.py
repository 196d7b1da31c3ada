"""How many bits z_sent can carry about x.

    I(x; z_sent) ≤ log C + I(x; z_sent | y) ≤ log C + E L        L = log N(c + σn; c, σ²I) − log q(c + σn | y)

for every density q that does not depend on the images L is averaged over. q is one Gaussian a class,
a mixture of K, or a Gaussian with full covariance: fitted to the train role, chosen on a second role, read on a third
that fitted neither q nor the encoder. In-sample values flatter, by 70 of 400 bits in a known case; that is why three
roles are needed. T releases: σ² becomes σ²/T.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.bounds.base import Bound, Kind, Side
from splitveil.bounds.full_covariance import MOST, SHRINKAGES, Noisy, full_nats
from splitveil.bounds.parts import Encoded
from splitveil.check import at_least
from splitveil.metrics import Interval, interval
from splitveil.mixtures import Mixture, fit_mixture, leak_nats, without_noise

SIZES = (1, 2, 4, 8)  # groups a class; 1 is the plain Gaussian
ROUNDS = 30  # of EM

HOLDS_IF = (
    "the images are drawn as those it was read on",
    "the encoder was not fitted to those",
    "the interval, over images, holds",
)


@dataclass(frozen=True)
class Density:
    """Which q."""

    groups: int = 1
    shrinkage: float | None = None  # of a full covariance toward its diagonal; None: diagonal

    def __str__(self) -> str:
        if self.shrinkage is not None:
            return f"a Gaussian a class, full covariance shrunk by {self.shrinkage:g}"
        return "a Gaussian a class" if self.groups == 1 else f"a mixture of {self.groups} Gaussians a class"


PLAIN = Density()


@dataclass(frozen=True)
class Reading:
    """log C + L of each image, in bits, under one density."""

    density: Density
    bits: Float[Tensor, " image"]

    @property
    def interval(self) -> Interval:
        """Mean with its bootstrap interval over images."""
        return interval(self.bits)


def information(
    known: Encoded,
    *,
    releases: int = 1,
    sizes: Sequence[int] = SIZES,
    shrinkages: Sequence[float] = SHRINKAGES,
    seed: int = 0,
) -> tuple[Bound, ...]:
    """Bounds on I(x; z_sent): of the plain Gaussian, of the mixture that was chosen, of a full covariance if better."""
    found = _all_readings(known, releases, sizes, shrinkages, seed)
    untried = "" if known.fit.z.shape[1] <= MOST else f"; full covariance not tried: more than {MOST} features"
    return tuple(_bound(each, releases, untried) for each in found)


def readings(
    known: Encoded,
    *,
    releases: int = 1,
    sizes: Sequence[int] = SIZES,
    shrinkages: Sequence[float] = SHRINKAGES,
    seed: int = 0,
) -> tuple[Reading, Reading]:
    """Of one group a class, and of the density that `known.choose` prefers. Full covariances of few features only."""
    found = _all_readings(known, releases, sizes, shrinkages, seed)
    return found[0], found[-1]


@torch.no_grad()
def _all_readings(
    known: Encoded, releases: int, sizes: Sequence[int], shrinkages: Sequence[float], seed: int
) -> tuple[Reading, ...]:
    """Of one group a class, of the best mixture, and of the best density of all, each once."""
    at_least("releases", releases, 1)
    std = known.channel.std_after(releases)
    sets = [Noisy(points, _noise(points.z, seed)) for points in (known.choose, known.read)]
    found = _mixture_nats(known, sets, std, tuple(dict.fromkeys((1, *sizes))), seed)
    if known.fit.z.shape[1] <= MOST:
        full = full_nats(known.fit, sets, n_classes=known.n_classes, std=std, shrinkages=shrinkages)
        found |= {Density(shrinkage=a): nats for a, nats in full.items()}
    by_choice = sorted(found, key=lambda density: float(found[density][0].mean()))
    mixture = next(density for density in by_choice if density.shrinkage is None)
    classes = math.log2(known.n_classes)
    shown = dict.fromkeys((PLAIN, mixture, by_choice[0]))
    return tuple(Reading(each, found[each][1] / math.log(2) + classes) for each in shown)


def _fit(known: Encoded, std: float, sizes: tuple[int, ...], seed: int) -> dict[int, Mixture]:
    """Mixtures of noisy features, less the noise: fitted to clean ones, variances would collapse onto the members."""
    rng = torch.Generator().manual_seed(seed)
    z = known.fit.z
    noisy = z + std * torch.randn(z.shape, generator=rng).to(z)

    def fit(n_groups: int) -> Mixture:
        fitted = fit_mixture(
            noisy,
            known.fit.classes,
            n_classes=known.n_classes,
            n_groups=n_groups,
            generator=rng,
            floor=std**2,
            max_rounds=ROUNDS,
        )
        return without_noise(fitted.mixture, std**2)

    return {n_groups: fit(n_groups) for n_groups in sizes}


def _noise(z: Float[Tensor, "image dim"], seed: int) -> Float[Tensor, "image dim"]:
    return torch.randn(z.shape, generator=torch.Generator().manual_seed(seed + 1)).to(z)


def _mixture_nats(
    known: Encoded, sets: Sequence[Noisy], std: float, sizes: tuple[int, ...], seed: int
) -> dict[Density, tuple[Tensor, ...]]:
    """L of every point of each set, for each size."""

    def nats(each: Noisy, mixture: Mixture) -> Tensor:
        return leak_nats(each.points.z, each.points.classes, mixture, each.noise, noise_var=std**2)

    found = _fit(known, std, sizes, seed)
    return {Density(groups): tuple(nats(each, mixture) for each in sets) for groups, mixture in found.items()}


def _bound(reading: Reading, releases: int, untried: str) -> Bound:
    span = reading.interval
    return Bound(
        name=f"information, {reading.density}{untried}",
        quantity="I(x; z_sent)",
        value=span.mean,
        side=Side.AT_MOST,
        kind=Kind.SAMPLED,
        holds_if=HOLDS_IF,
        unit="bits",
        interval=(span.low, span.high),
        releases=releases,
    )
