"""How many bits z_sent can carry about x.

    I(x; z_sent) ≤ log C + I(x; z_sent | y) ≤ log C + E L        L = log N(c + σn; c, σ²I) − log q(c + σn | y)

for every density q that does not depend on the images L is averaged over. q is one Gaussian a class, or a mixture of K:
fitted to the train role, K chosen on a second role, read on a third that fitted neither q nor the encoder. In-sample
values flatter, by 70 of 400 bits in a known case; that is why three roles are needed. T releases: σ² becomes σ²/T.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.bounds.base import Bound, Kind, Side
from splitveil.bounds.parts import Encoded, Points
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
class Reading:
    """log C + L of each image, in bits, under mixtures of one size."""

    groups: int
    bits: Float[Tensor, " image"]

    @property
    def interval(self) -> Interval:
        """Mean with its bootstrap interval over images."""
        return interval(self.bits)


def information(known: Encoded, *, releases: int = 1, sizes: Sequence[int] = SIZES, seed: int = 0) -> tuple[Bound, ...]:
    """Bounds on I(x; z_sent): of the plain Gaussian, and of the mixture whose size was chosen, if it is another."""
    plain, chosen = readings(known, releases=releases, sizes=sizes, seed=seed)
    return tuple(_bound(each, releases) for each in (plain, chosen)[: 1 if chosen.groups == 1 else 2])


@torch.no_grad()
def readings(
    known: Encoded, *, releases: int = 1, sizes: Sequence[int] = SIZES, seed: int = 0
) -> tuple[Reading, Reading]:
    """Of one group a class, and of as many as `known.choose` prefers."""
    at_least("releases", releases, 1)
    std = known.channel.std_after(releases)
    found = _fit(known, std, tuple(dict.fromkeys((1, *sizes))), seed)
    tried = _nats(known.choose, found, std, seed)
    best = min(tried, key=lambda groups: float(tried[groups].mean()))
    read = _nats(known.read, {k: found[k] for k in {1, best}}, std, seed)
    classes = math.log2(known.n_classes)
    plain, chosen = (Reading(k, read[k] / math.log(2) + classes) for k in (1, best))
    return plain, chosen


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


def _nats(points: Points, found: dict[int, Mixture], std: float, seed: int) -> dict[int, Tensor]:
    z = points.z
    noise = torch.randn(z.shape, generator=torch.Generator().manual_seed(seed + 1)).to(z)
    return {k: leak_nats(z, points.classes, mixture, noise, noise_var=std**2) for k, mixture in found.items()}


def _bound(reading: Reading, releases: int) -> Bound:
    span = reading.interval
    density = "a Gaussian" if reading.groups == 1 else f"a mixture of {reading.groups} Gaussians"
    return Bound(
        name=f"information, {density} a class",
        quantity="I(x; z_sent)",
        value=span.mean,
        side=Side.AT_MOST,
        kind=Kind.SAMPLED,
        holds_if=HOLDS_IF,
        unit="bits",
        interval=(span.low, span.high),
        releases=releases,
    )
