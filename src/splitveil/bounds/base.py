"""A bound: a number no adversary can beat, how it is known, and what must be true for it to hold.

at least    the error of every attack is ≥ value            at most    what every observer learns is ≤ value

proved                  a theorem, and nothing in it was estimated
proved-up-to-sampling   a theorem about a mean that was estimated: the interval is its sampling error
asymptotic              right in a limit, which may be far away
heuristic               right if something holds that nobody has checked; good for comparing, not for promising
"""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from splitveil.check import UsageError, at_least, one_of

MSE = "MSE"  # of a reconstruction of the images themselves: what attacks are scored by


class Kind(StrEnum):
    """How a bound is known."""

    PROVED = "proved"
    SAMPLED = "proved-up-to-sampling"
    ASYMPTOTIC = "asymptotic"
    HEURISTIC = "heuristic"

    @property
    def is_proved(self) -> bool:
        """Whether a measurement on its wrong side is a contradiction."""
        return self in (Kind.PROVED, Kind.SAMPLED)


class Side(StrEnum):
    """Where the truth lies, seen from the value."""

    AT_LEAST = "at_least"
    AT_MOST = "at_most"


SIGNS = {Side.AT_LEAST: "≥", Side.AT_MOST: "≤"}


@dataclass(frozen=True)
class Bound:
    """A bound with its kind and its assumptions, which are printed with it.

    Guarantees: `Bound.from_json(bound.to_json()) == bound`.
    """

    name: str
    quantity: str  # what is bounded
    value: float
    side: Side
    kind: Kind
    holds_if: tuple[str, ...]
    unit: str = ""
    interval: tuple[float, float] | None = None  # 95 %; None: nothing was estimated
    releases: int = 1  # of one input, each with fresh noise
    label_known: bool = False  # whether it holds against attackers who know the label, too

    def __post_init__(self) -> None:
        at_least("releases", self.releases, 1)
        if self.kind is Kind.SAMPLED and self.interval is None:
            raise UsageError(f"bound {self.name!r} is proved up to sampling: it needs an interval")

    @property
    def safe(self) -> float:
        """The end of the interval that claims less; the value itself where nothing was estimated."""
        if self.interval is None:
            return self.value
        return self.interval[0] if self.side is Side.AT_LEAST else self.interval[1]

    @property
    def is_about_attacks(self) -> bool:
        """Whether an attack's MSE below `safe` would contradict it."""
        return self.kind.is_proved and self.side is Side.AT_LEAST and self.quantity == MSE

    def statement(self) -> str:
        """Quantity, sign, number, unit and interval.

        >>> Bound("example", MSE, 0.0125, Side.AT_LEAST, Kind.SAMPLED, (), interval=(0.012, 0.013)).statement()
        'MSE ≥ 0.0125 [0.012, 0.013]'
        """
        span = "" if self.interval is None else " [" + ", ".join(_short(end) for end in self.interval) + "]"
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.quantity} {SIGNS[self.side]} {_short(self.value)}{unit}{span}"

    def describe(self) -> str:
        """The statement with its name, kind, number of releases and assumptions, in one line."""
        count = "1 release" if self.releases == 1 else f"{self.releases} releases"
        assumed = f"; holds if {'; '.join(self.holds_if)}" if self.holds_if else ""
        return f"{self.statement()} ({self.name}, {self.kind}, {count}{assumed})"

    def to_json(self) -> str:
        """As JSON text."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Bound":
        """What `to_json` wrote."""
        return cls.from_words(json.loads(text))

    @classmethod
    def from_words(cls, words: dict[str, Any]) -> "Bound":
        """From plain JSON values."""
        side = Side(one_of("side of a bound", words["side"], tuple(Side)))
        kind = Kind(one_of("kind of a bound", words["kind"], tuple(Kind)))
        span = None if words["interval"] is None else (words["interval"][0], words["interval"][1])
        return cls(**words | {"side": side, "kind": kind, "interval": span, "holds_if": tuple(words["holds_if"])})


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
