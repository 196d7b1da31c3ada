"""Settings of a surrogate, as records."""

from dataclasses import dataclass
from typing import Literal, final

from splitveil.check import at_least, fraction
from splitveil.regularizers.entropy.groupings.base import Rule


@final
@dataclass(frozen=True)
class Charging:
    """What the encoder is charged.

    `account`: "bound" charges S + I_r, or the widest of several weightings, never less than the class leaks; "spread"
    charges S alone, as the sources do. `through`: let the gradient pass through the memberships too. `class_weight`:
    M_c/B, or the same for every class that is there. `space`: "layernorm" measures spread after LayerNorm, as the notes
    do, and so cannot see σ. `silent_calls` and `shutoff` give the sources' early shutoff (shutoff.py): nothing is
    charged in the first calls, and while the mean opening of the gates of dimensions is above `shutoff`, or for
    "running" above what it usually is.
    """

    account: Literal["bound", "spread"] = "bound"
    through: bool = False
    class_weight: Literal["share", "present"] = "share"
    space: Literal["features", "layernorm"] = "features"
    silent_calls: int = 0
    shutoff: float | Literal["running"] | None = None

    def __post_init__(self) -> None:
        at_least("silent_calls", self.silent_calls, 0)
        if isinstance(self.shutoff, float | int):
            fraction("shutoff", self.shutoff, hint="it is the mean opening of gates; leave it out for no shutoff")


@final
@dataclass(frozen=True)
class Fitting:
    """How own parameters move: by which rule (None: the grouping's own), how fast, and every how many steps."""

    rule: Rule | None = None
    lr: float = 1e-3
    every: int = 1

    def __post_init__(self) -> None:
        at_least("every", self.every, 1)


@final
@dataclass(frozen=True)
class Memory:
    """How many of the newest members are kept for refits, and every how many epochs there is one."""

    capacity: int = 20_000
    refit_every: int = 1

    def __post_init__(self) -> None:
        at_least("refit_every", self.refit_every, 1)
