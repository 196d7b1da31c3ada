"""Averaging over T releases, in front of any attack.

    z̄ = (1/T) Σ_t z_sent_t            noise of variance σ² becomes σ²/T

The attack behind it is fitted on averages of T releases too, so it expects exactly the noise that is left.
"""

from dataclasses import dataclass, replace
from typing import final

from splitveil.attacks.base import Attack, Course, Health, Inverter, Need
from splitveil.attacks.knowledge import Knowledge
from splitveil.attacks.pairs import AveragedPairs, Seen, mean_release
from splitveil.check import UsageError, at_least
from splitveil.types import Images


@final
@dataclass(frozen=True)
class Averaged(Attack):
    """`attack` on the mean of `releases` releases of each input."""

    attack: Attack
    releases: int

    def __post_init__(self) -> None:
        at_least("releases", self.releases, 2, hint="one release needs no averaging")

    @property
    def name(self) -> str:
        return f"{self.attack.name}-mean{self.releases}"

    @property
    def needs(self) -> frozenset[Need]:
        return self.attack.needs | {Need.RELEASES}

    def _fit(self, known: Knowledge, course: Course) -> Inverter:
        held = known.threat.releases
        if held < self.releases:
            raise UsageError(f"attack {self.name!r} needs {self.releases} releases; {known.threat.name} has {held}")
        averaged = replace(
            known,
            pairs=AveragedPairs(known.pairs, releases=self.releases) if known.pairs else None,
            selection=AveragedPairs(known.selection, releases=self.releases) if known.selection else None,
        )
        fitted = self.attack.fit(averaged, seed=course.seed, watch=course.watch, state=course.state)
        return _OnMeans(fitted, self.releases)


@final
class _OnMeans(Inverter):
    def __init__(self, inverter: Inverter, releases: int) -> None:
        self._inverter, self._releases = inverter, releases

    @property
    def health(self) -> Health:
        return self._inverter.health

    def __call__(self, seen: Seen) -> Images:
        if len(seen.z_sent) < self._releases:
            raise UsageError(f"averaging over {self._releases} releases, got {len(seen.z_sent)}")
        return self._inverter(mean_release(seen, self._releases))
