"""One attack, one threat model, one seed: fit, invert, score."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from splitveil.attacks import Health, Knowledge, Oracle, Watch, grant
from splitveil.evaluation.gauge import NOTHING, Gauge, Spent
from splitveil.evaluation.judges import Judges
from splitveil.evaluation.roles import Roles
from splitveil.evaluation.samples import Samples, choose, to_pixels
from splitveil.evaluation.suite import Inquiry, Trial
from splitveil.evaluation.victims import Victims
from splitveil.metrics import Scores


@dataclass(frozen=True)
class Outcome:
    """What one trial with one seed gave: every victim's scores, and how it went."""

    scores: dict[str, Scores]
    health: Health
    seconds: float
    peak_memory_mb: float | None
    samples: Samples | None
    judging: Spent = NOTHING  # beside it: training who looked at the reconstructions, and looking
    peak_is_at_most: bool = False  # it is that of the process since it began

    def mean(self, metric: str) -> float | None:
        """Mean over the victims; None where there is no such score."""
        return self.scores[metric].mean().item() if metric in self.scores else None


@dataclass(frozen=True)
class Scene:
    """Everything the trials of one evaluation share."""

    oracle: Oracle
    roles: Roles
    victims: Victims
    keep_samples: bool
    judges: Judges | None = None
    head: nn.Module | None = None  # the server's half


def run_trial(
    trial: Trial, scene: Scene, *, seed: int, watch: Watch | None = None, state: Path | None = None
) -> Outcome:
    """Fit the attack on what its threat model grants, then invert and score every victim."""
    judging = NOTHING if scene.judges is None else scene.judges.prepare(insider=trial.threat.insider, watch=watch)
    scores, painted = [], []
    with Gauge(scene.roles.auxiliary.device, state) as gauge:
        inverter = trial.attack.fit(_known(trial, scene, seed), seed=seed, watch=gauge.watched(watch), state=state)
        for rows in scene.victims.chunks(trial.threat.releases):
            x_hat = inverter(scene.victims.observe(rows, trial.threat, seed=seed))
            with gauge.aside():
                scores.append(scene.victims.score(rows, x_hat))
                painted.append(to_pixels(x_hat))
            if scene.judges is not None:
                with gauge.aside() as looking:
                    scores[-1] |= scene.victims.judge(rows, x_hat, trial.threat, scene.judges)
                    judging += looking.read()
        spent = gauge.read()
    joined = {name: torch.cat([part[name] for part in scores]) for name in scores[0]}
    samples = _samples(scene.victims, joined["mse"], torch.cat(painted)) if scene.keep_samples else None
    return Outcome(joined, inverter.health, spent.seconds, spent.peak_memory_mb, samples, judging, spent.is_at_most)


def run_inquiry(
    inquiry: Inquiry, scene: Scene, *, seed: int, watch: Watch | None = None, state: Path | None = None
) -> Outcome:
    """Fit the inference on what its threat model grants, then say of every victim whether the guess was right."""
    right = []
    with Gauge(scene.roles.auxiliary.device, state) as gauge:
        guesser = inquiry.attack.fit(_known(inquiry, scene, seed), seed=seed, watch=gauge.watched(watch), state=state)
        for rows in scene.victims.chunks(inquiry.threat.releases):
            guess = guesser(scene.victims.observe(rows, inquiry.threat, seed=seed)).argmax(1)
            right.append((guess == inquiry.attack.truth(scene.victims.labels(rows))).float().cpu())
        spent = gauge.read()
    return Outcome(
        {"right": torch.cat(right)},
        guesser.health,
        spent.seconds,
        spent.peak_memory_mb,
        samples=None,
        peak_is_at_most=spent.is_at_most,
    )


def _known(trial: Trial | Inquiry, scene: Scene, seed: int) -> Knowledge:
    return grant(
        trial.threat,
        oracle=scene.oracle,
        auxiliary=scene.roles.auxiliary,
        selection=scene.roles.selection,
        private=scene.roles.private,
        n_classes=scene.roles.n_classes,
        head=scene.head,
        seed=seed,
    )


def _samples(victims: Victims, mse: Scores, x_hat: torch.Tensor) -> Samples:
    index = choose(mse)
    return Samples(tuple(index), tuple(mse[index].tolist()), victims.pictures(index), x_hat[index])
