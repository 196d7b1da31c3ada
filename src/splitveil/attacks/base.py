"""What an adversary does: fit on what its threat model grants, then answer z_sent with images.

    attack.fit(knowledge, seed) → inverter            inverter(seen) → x_hat

An attack is configured when it is built, states what it needs, and refuses to run with less.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import final

from splitveil.attacks.knowledge import Knowledge
from splitveil.attacks.pairs import Seen
from splitveil.check import UsageError
from splitveil.fitting import Check
from splitveil.types import Images

REVISION = 3  # raise it when an attack answers differently with the same settings: nothing stored is then taken

Watch = Callable[[Check], None]  # called at each check of a long fit


@dataclass(frozen=True)
class Course:
    """How a fit is run, beside what it learns from: its seed, who watches, and where it can be taken up again."""

    seed: int
    watch: Watch | None = None
    state: Path | None = None  # a long fit keeps itself here; found there, it goes on


class Need(StrEnum):
    """What an attack may not do without."""

    PAIRS = "paired queries"
    CLIENT = "the client itself"
    LABEL = "the victims' labels"
    RELEASES = "several releases of one input"
    FAMILY = "the architecture's family"
    HEAD = "the server's head"


@dataclass(frozen=True)
class Health:
    """How a fit went, for the flags of an evaluation."""

    train_mse: float | None = None  # on the images fitted, as attacked: no augmentation
    selection_mse: float | None = None
    steps: int = 0
    still_falling: bool = False
    chosen: str = ""  # on selection images, in words


class Inverter(ABC):
    """A fitted attack: what it saw → what it believes the images were."""

    @property
    @abstractmethod
    def health(self) -> Health:
        """How the fit went."""

    @abstractmethod
    def __call__(self, seen: Seen) -> Images:
        """Reconstructions in [0, 1], one per input."""


class Attack(ABC):
    """Something an adversary can do. Every implementation is a frozen dataclass, so its settings are its fields.

    Guarantees expected of every implementation: the same knowledge and seed give the same inverter; an inverter's
    answer for one input does not depend on the others in the batch.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is called in results and on the command line."""

    @property
    @abstractmethod
    def needs(self) -> frozenset[Need]:
        """What it may not do without."""

    @property
    def hears_all(self) -> bool:
        """Whether it hears every release of an input. Others hear the first alone: `Averaged` goes in front of them."""
        return False

    @abstractmethod
    def _fit(self, known: Knowledge, course: Course) -> Inverter:
        """Fit on knowledge that is known to suffice."""

    @final
    def fit(self, known: Knowledge, *, seed: int, watch: Watch | None = None, state: Path | None = None) -> Inverter:
        """An inverter fitted on `known`; a `UsageError` where that lacks something the attack needs.

        Guarantees: an attack that does not state that it needs the client is not handed it.
        """
        lacking = sorted(str(need) for need in self.needs if not _holds(known, need))
        if lacking:
            raise UsageError(f"attack {self.name!r} needs {' and '.join(lacking)}; {known.threat.name} grants none")
        used = known if Need.CLIENT in self.needs else replace(known, client=None)
        return self._fit(used, Course(seed, watch, state))


def _holds(known: Knowledge, need: Need) -> bool:
    match need:
        case Need.PAIRS:
            return known.pairs is not None and known.selection is not None
        case Need.CLIENT:
            return known.client is not None
        case Need.LABEL:
            return known.threat.label_known and known.n_classes is not None
        case Need.RELEASES:
            return known.threat.releases > 1
        case Need.FAMILY:
            return known.family is not None
        case Need.HEAD:
            return known.head is not None
