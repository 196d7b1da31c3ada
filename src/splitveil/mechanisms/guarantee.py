"""What is known about every possible feature vector at one point of a chain of mechanisms.

    before any mechanism      nothing: no bound on a norm, no privacy
    clip to radius C          ‖z‖ ≤ C
    additive noise            ‖z(x) − z(x')‖ ≤ 2C for any two inputs x, x': one event of sensitivity 2C
    anything after that       post-processing: the event stays, the bounds go

Any two inputs are neighbors (local differential privacy), so the sensitivity is the diameter 2C, not the radius. A
mechanism that only zeroes coordinates keeps every bound; one that may move a coordinate away from zero loses them. A
clip after the noise is post-processing and buys nothing. The event is that of real arithmetic: floating-point noise is
not on a lattice, and reports say so.
"""

import math
from dataclasses import dataclass, field

from splitveil.dp.events import Event, NonPrivate


@dataclass(frozen=True)
class Guarantee:
    """Bounds that hold for every input, and the release made so far."""

    l2: float = math.inf  # no feature vector has a larger l2 norm
    l1: float = math.inf
    event: Event = field(default_factory=NonPrivate)

    @property
    def is_private(self) -> bool:
        """Whether a private release has been made: from here on everything is post-processing."""
        return not isinstance(self.event, NonPrivate)

    def released(self, event: Event) -> "Guarantee":
        """After a release: the first private one counts, and noise has no norm bound."""
        return Guarantee(event=self.event if self.is_private else event)
