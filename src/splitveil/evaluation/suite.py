"""Fixed suites of attacks. A suite has no knobs: two clients that were put through it can be compared.

    cheap       under a minute a client on two cores: affine least squares and a short plain decoder
    standard    the whole ladder, as insider and outsider; label known; averaged releases; black boxes of n queries

A suite is fitted to its ground: what cannot be played there (an insider without private images, averaging where nothing
is random, a white box where there is only a function) is left out or played as the nearest threat that can.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from splitveil.attacks import Attack, Averaged, Box, DecoderAttack, Objective, Ridge, Rung, Threat
from splitveil.check import UsageError, nearest, one_of
from splitveil.fitting import Plan

SHORT = Plan(steps=800, lr=4e-3, ema=0.99, check_every=100)
LONG = Plan(steps=5000, lr=3e-3, ema=0.998, check_every=100)
SHORT_BATCH, LONG_BATCH = 64, 512
CHEAP_VICTIMS = 1000
MANY = 16  # releases of one input


@dataclass(frozen=True)
class Trial:
    """One attack under one threat model."""

    attack: Attack
    threat: Threat

    @property
    def name(self) -> str:
        """As it is named in a result."""
        return f"{self.attack.name} ({self.threat.name})"

    @property
    def slug(self) -> str:
        """As part of a file name."""
        return f"{self.attack.name}--{self.threat.slug}".replace(".", "_")


@dataclass(frozen=True)
class Ground:
    """What an evaluation has to work with."""

    has_client: bool  # False: only a function
    is_random: bool
    has_private: bool
    has_labels: bool
    n_auxiliary: int
    n_selection: int


@dataclass(frozen=True)
class Suite:
    """A named list of trials, most informative first."""

    name: str
    trials: tuple[Trial, ...]
    n_victims: int | None = None  # None: all of them

    def only(self, attacks: Sequence[str]) -> "Suite":
        """The trials of these attacks alone."""
        known = sorted({trial.attack.name for trial in self.trials})
        for name in attacks:
            if name not in known:
                raise UsageError(
                    f"suite {self.name!r} has no attack {name!r}{nearest(name, known)}; it has: {', '.join(known)}"
                )
        kept = tuple(trial for trial in self.trials if trial.attack.name in attacks)
        return replace(self, name=f"{self.name}, only {', '.join(attacks)}", trials=kept)

    def on(self, ground: Ground) -> "Suite":
        """The trials that can be played on this ground."""
        fitted = (_fit_to(trial, ground) for trial in self.trials)
        trials = tuple(dict.fromkeys(trial for trial in fitted if trial is not None))
        if not trials:
            raise UsageError(f"suite {self.name!r} has no attack that can be played here")
        return replace(self, trials=trials)


def _fit_to(trial: Trial, ground: Ground) -> Trial | None:
    threat = trial.threat
    missing = (
        (threat.insider and not ground.has_private)
        or (threat.label_known and not ground.has_labels)
        or (threat.releases > 1 and not ground.is_random)
        or (threat.queries is not None and threat.queries > min(ground.n_auxiliary, 5 * ground.n_selection))
    )
    if missing:
        return None
    if threat.box is Box.WHITE and not ground.has_client:
        return replace(trial, threat=replace(threat, box=Box.BLACK))
    return trial


def decoder(rung: Rung, *, objective: Objective = "mse", labels: bool = False) -> DecoderAttack:
    """A rung of the ladder, as `standard` runs it."""
    return DecoderAttack(rung, objective=objective, labels=labels, batch=LONG_BATCH, plan=LONG)


def cheap() -> Suite:
    """Under a minute a client on two cores."""
    short = DecoderAttack("conv", batch=SHORT_BATCH, plan=SHORT)
    trials = (
        Trial(Ridge(), Threat()),
        Trial(short, Threat()),
        Trial(Averaged(Ridge(), MANY), Threat(releases=MANY)),
        Trial(Ridge(), Threat(insider=True)),
    )
    return Suite("cheap", trials, CHEAP_VICTIMS)


def standard() -> Suite:
    """The whole ladder. No knobs."""
    residual = decoder("residual")
    trials = (
        Trial(residual, Threat(insider=True)),
        Trial(residual, Threat()),
        Trial(decoder("unet"), Threat(insider=True)),
        Trial(decoder("unet"), Threat()),
        Trial(Averaged(residual, MANY), Threat(releases=MANY)),
        Trial(Ridge(), Threat()),
        Trial(Ridge(), Threat(insider=True)),
        Trial(decoder("conv"), Threat(insider=True)),
        Trial(decoder("conv"), Threat()),
        Trial(decoder("residual", labels=True), Threat(label_known=True)),
        Trial(decoder("residual", objective="ssim"), Threat()),
        Trial(residual, Threat(Box.BLACK, queries=4096)),
        Trial(residual, Threat(Box.BLACK, queries=1024)),
        Trial(residual, Threat(Box.BLACK, queries=128)),
    )
    return Suite("standard", trials)


SUITES = {"cheap": cheap, "standard": standard}


def suite_named(name: str) -> Suite:
    """The suite of that name."""
    return SUITES[one_of("suite", name, tuple(SUITES))]()
