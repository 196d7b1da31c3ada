"""What a suite is made of: trials (an attack under a threat), inquiries, and who looks at the reconstructions.

A suite is fitted to its ground: what cannot be played there (an insider without private images, averaging where nothing
is random, a white box where there is only a function) is left out with the reason, or played as the nearest threat that
can.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from splitveil.attacks import Attack, Box, Inference, Need, Recognition, Threat
from splitveil.attacks.knowledge import SELECTION_SHARE
from splitveil.check import UsageError, nearest
from splitveil.evaluation.pictures import Shape, lacks

ONLY = ", only "  # between the name of a suite and what a part of it has
WITH = ", with "  # between the name of a suite and what is asked beside it


@dataclass(frozen=True)
class Trial:
    """One attack under one threat model."""

    attack: Attack
    threat: Threat

    def __post_init__(self) -> None:
        _check_heard(self.attack, self.threat, hint="wrap it in Averaged, or grant one release")

    @property
    def name(self) -> str:
        """As it is named in a result."""
        return f"{self.attack.name} ({self.threat.name})"

    @property
    def slug(self) -> str:
        """As part of a file name."""
        return f"{self.attack.name}--{self.threat.slug}".replace(".", "_")


@dataclass(frozen=True)
class Inquiry:
    """One inference under one threat model: what is concluded without painting anything."""

    attack: Inference
    threat: Threat

    def __post_init__(self) -> None:
        _check_heard(self.attack, self.threat, hint="grant one release")

    @property
    def name(self) -> str:
        """As it is named in a result."""
        return f"{self.attack.name} ({self.threat.name})"

    @property
    def slug(self) -> str:
        """As part of a file name."""
        return f"{self.attack.name}--{self.threat.slug}".replace(".", "_")


def _check_heard(attack: Attack | Inference, threat: Threat, *, hint: str) -> None:
    """Releases that nobody hears would pass for averaging that was tried."""
    if threat.releases > 1 and not attack.hears_all:
        raise UsageError(f"{attack.name!r} hears one release of an input, got a threat with {threat.releases}; {hint}")


@dataclass(frozen=True)
class Ground:
    """What an evaluation has to work with."""

    has_client: bool  # False: only a function
    is_random: bool
    has_private: bool
    has_labels: bool
    n_auxiliary: int
    n_selection: int
    has_own_labels: bool = True  # of the auxiliary images; people who are nobody's class have none
    has_head: bool = True  # the server's half is at hand
    n_private: int = 0  # that an insider has beside its own
    image_shape: Shape | None = None  # None: as every attack can paint them

    def n_queries(self, *, insider: bool) -> int:
        """The most that a black box can be asked: one of SELECTION_SHARE is a selection image, the others are own."""
        own = self.n_auxiliary + self.n_private * insider
        return min(own + own // (SELECTION_SHARE - 1), SELECTION_SHARE * (self.n_selection + 1) - 1)


@dataclass(frozen=True)
class NotPlayed:
    """An attack or inquiry that cannot be played on some ground."""

    name: str
    reason: str  # in a few words


@dataclass(frozen=True)
class Suite:
    """A named list of trials, most informative first; what is asked beside; and who looks at the reconstructions."""

    name: str
    trials: tuple[Trial, ...]
    n_victims: int | None = None  # None: all of them
    inquiries: tuple[Inquiry, ...] = ()
    recognition: Recognition | None = None  # None: nobody

    def __post_init__(self) -> None:
        if not self.trials:
            raise UsageError(f"suite {self.name!r} has no attack; give at least one, as Trial(Ridge(), Threat())")
        asked: tuple[Trial | Inquiry, ...] = (*self.trials, *self.inquiries)
        slugs: set[str] = set()
        for each in asked:
            if each.slug in slugs:
                raise UsageError(f"suite {self.name!r} has {each.name} twice, one file for both; make it two suites")
            slugs.add(each.slug)

    @property
    def names(self) -> list[str]:
        """Of all its attacks and inquiries."""
        return sorted({trial.attack.name for trial in self.trials} | {each.attack.name for each in self.inquiries})

    @property
    def is_part(self) -> bool:
        """Whether it is what `only` left of another."""
        return ONLY in self.name

    @property
    def file(self) -> str:
        """Where its result is kept: a part of a suite, or one with more, does not take the place of the whole."""
        places = [place for mark in (ONLY, WITH) if (place := self.name.find(mark)) >= 0]
        more = self.name[min(places) :] if places else ""
        return f"result{more.replace(ONLY, '-').replace(', ', '-').replace(' ', '-')}.json"

    def only(self, attacks: Sequence[str]) -> "Suite":
        """The trials (and inquiries) of these names alone."""
        known = self.names
        for name in attacks:
            if name not in known:
                raise UsageError(
                    f"suite {self.name!r} has no attack {name!r}{nearest(name, known)}; it has: {', '.join(known)}"
                )
        kept = tuple(trial for trial in self.trials if trial.attack.name in attacks)
        asked = tuple(inquiry for inquiry in self.inquiries if inquiry.attack.name in attacks)
        if not kept:
            raise UsageError(f"{', '.join(attacks)} paints nothing and is asked beside an attack; pick one too")
        return replace(self, name=f"{self.name}{ONLY}{', '.join(attacks)}", trials=kept, inquiries=asked)

    def asking(self, inquiries: Sequence[Inquiry], *, name: str) -> "Suite":
        """The same with more inquiries, which `name` stands for in its own name."""
        return replace(self, name=f"{self.name}{WITH}{name}", inquiries=(*self.inquiries, *inquiries))

    def on(self, ground: Ground) -> "Suite":
        """The trials that can be played on this ground."""
        fitted = (_fit_to(trial, ground) for trial in self.trials)
        trials = tuple(dict.fromkeys(trial for trial in fitted if trial is not None))
        if not trials:
            reason = self.left_out(ground)[0].reason
            raise UsageError(f"suite {self.name!r} has no attack that can be played here ({reason})")
        asked = (_fit_to(inquiry, ground) for inquiry in self.inquiries)
        inquiries = tuple(dict.fromkeys(inquiry for inquiry in asked if inquiry is not None))
        return replace(
            self, trials=trials, inquiries=inquiries, recognition=self.recognition if ground.has_labels else None
        )

    def left_out(self, ground: Ground) -> tuple[NotPlayed, ...]:
        """What `on` leaves away, and why."""
        every: tuple[Trial | Inquiry, ...] = (*self.trials, *self.inquiries)
        found = ((each.name, _obstacle(each, ground)) for each in every)
        return tuple(NotPlayed(name, reason) for name, reason in found if reason is not None)


Asked = TypeVar("Asked", Trial, Inquiry)


def _fit_to(trial: Asked, ground: Ground) -> Asked | None:
    """As it can be played on this ground; None where it cannot."""
    if _obstacle(trial, ground) is not None:
        return None
    if trial.threat.box is Box.WHITE and not ground.has_client:
        return replace(trial, threat=replace(trial.threat, box=Box.BLACK))
    return trial


def _obstacle(trial: Trial | Inquiry, ground: Ground) -> str | None:
    """Why this cannot be played here, in a few words; None where it can."""
    threat, n_queries = trial.threat, ground.n_queries(insider=trial.threat.insider)
    is_blind = threat.box is Box.QUERY_FREE
    has_labels, has_own = ground.has_labels, ground.has_labels and ground.has_own_labels
    needs_client = isinstance(trial, Trial) and Need.CLIENT in trial.attack.needs
    needs_labels = threat.label_known or isinstance(trial, Inquiry)
    obstacles = {
        "needs the private training images": threat.insider and not ground.has_private,
        "needs labels": (needs_labels and not (has_labels if threat.insider else has_own))
        or (is_blind and not has_own),
        "nothing is random, so releases are alike": threat.releases > 1 and not ground.is_random,
        "needs the server's head": threat.head_known and not ground.has_head,
        "needs the client's architecture": is_blind and not ground.has_client,
        f"needs {threat.queries} queries, there are images for {n_queries}": (threat.queries or 0) > n_queries,
        "needs the client itself": needs_client and not ground.has_client,
    }
    lacking = None if isinstance(trial, Inquiry) or not ground.image_shape else lacks(trial.attack, ground.image_shape)
    return next((reason for reason, stands in obstacles.items() if stands), lacking)
