"""Averaging over T releases, in front of any attack.

    z̄ = (1/T) Σ_t z_sent_t            noise of variance σ² becomes σ²/T

Not every noise is best averaged: the median of much Laplace noise has half the mean's variance, and what dropout left
is seen by leaving out what is exactly 0. Which of the three says most is measured on the attacker's own releases:

    bits = ½ Σ_i log(1 + between_i / within_i)        i: numbers of z̄;  between: over images,  within: over releases

The attack behind it is fitted on T releases taken together so, and expects exactly the noise that is left.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import final, get_args

from splitveil.attacks.base import Attack, Course, Health, Inverter, Need
from splitveil.attacks.knowledge import Knowledge
from splitveil.attacks.oracle import Releases
from splitveil.attacks.pairs import ChangedPairs, Pool, Seen, one_release, pooled
from splitveil.check import UsageError, at_least
from splitveil.randomness import SeededSource
from splitveil.types import Images

N_OWN = 500  # images whose releases choose
CLEARLY = 1.02  # times the mean's bits that another must have
TINY = 1e-6  # of a number's variance: what never changes between releases has no end of bits


@final
@dataclass(frozen=True)
class Averaged(Attack):
    """`attack` on the mean of `releases` releases of each input, or on what says more."""

    attack: Attack
    releases: int

    def __post_init__(self) -> None:
        at_least("releases", self.releases, 2, hint="one release needs no averaging")
        if Need.CLIENT in self.attack.needs:  # its likelihood is that of one release, and a mean is none
            raise UsageError(
                f"{self.attack.name!r} hears all releases by itself: give its Threat the releases, without Averaged"
            )

    @property
    def name(self) -> str:
        return f"{self.attack.name}-mean{self.releases}"

    @property
    def needs(self) -> frozenset[Need]:
        return self.attack.needs | {Need.RELEASES}

    @property
    def hears_all(self) -> bool:
        return True

    def _fit(self, known: Knowledge, course: Course) -> Inverter:
        held = known.threat.releases
        if held < self.releases:
            raise UsageError(f"attack {self.name!r} needs {self.releases} releases; {known.threat.name} has {held}")
        pool = self._pool(known, course.seed)
        as_one = partial(one_release, releases=self.releases, pool=pool)
        averaged = replace(
            known,
            pairs=ChangedPairs(known.pairs, as_one) if known.pairs else None,
            selection=ChangedPairs(known.selection, as_one) if known.selection else None,
        )
        fitted = self.attack.fit(averaged, seed=course.seed, watch=course.watch, state=course.state)
        return _Pooling(fitted, self.releases, pool)

    def _pool(self, known: Knowledge, seed: int) -> Pool:
        if known.pairs is None:
            return "mean"
        own = known.pairs.first(N_OWN, source=SeededSource(seed, "pool"))
        return telling(own.seen.z_sent[: self.releases])


def telling(z_sent: Releases) -> Pool:
    """How releases are best taken together; their mean where nothing is clearly better."""
    bits = {pool: _bits(z_sent, pool) for pool in get_args(Pool)}
    best = max(bits, key=bits.__getitem__)
    return best if bits[best] > CLEARLY * bits["mean"] else "mean"


def _bits(z_sent: Releases, pool: Pool) -> float:
    """Of one half of the releases, judged by how far the other half agrees."""
    half = len(z_sent) // 2
    one, other = (pooled(part, pool)[0].flatten(1).double() for part in (z_sent[:half], z_sent[half : 2 * half]))
    within = (one - other).square().mean(0) / 2
    both = (one.var(0) + other.var(0)) / 2
    between = (both - within).clamp_min(0)
    told = (1 + between / (within + TINY * both).clamp_min(1e-300)).log().sum() / (2 * math.log(2))
    return told.item()


@final
class _Pooling(Inverter):
    def __init__(self, inverter: Inverter, releases: int, pool: Pool) -> None:
        self._inverter, self._releases, self.pool = inverter, releases, pool

    @property
    def health(self) -> Health:
        return self._inverter.health

    def __call__(self, seen: Seen) -> Images:
        if len(seen.z_sent) < self._releases:
            raise UsageError(f"averaging over {self._releases} releases, got {len(seen.z_sent)}")
        return self._inverter(one_release(seen, self._releases, self.pool))
