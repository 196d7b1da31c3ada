"""What an adversary concludes about an input without painting it: z_sent → scores over answers.

    inference.fit(knowledge, seed) → guesser           guesser(seen) → one score per answer; the highest is the guess

A probe reads the class, or an attribute of the class, from z_sent itself. A client whose images cannot be rebuilt may
still say what they show: it must, for the server to classify, so a probe's accuracy is to be read against the task's.
"""

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from splitveil.attacks.base import Health, Watch
from splitveil.attacks.knowledge import Knowledge
from splitveil.attacks.pairs import Pairs, Seen
from splitveil.check import UsageError, at_least
from splitveil.fitting import Fitted, Plan, Shuffled, fit
from splitveil.randomness import SeededSource, derive
from splitveil.types import Labels, Logits

N_SCORED = 1000  # selection images that choose the checkpoint
N_CALIBRATED = 500  # pairs that give the units of the features
LABEL = "label"  # what a probe without groups reads
NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")  # of an attribute: part of a file name
TINY = 1e-6  # a constant feature is shifted to zero and not blown up


class Guesser(ABC):
    """A fitted inference."""

    @property
    @abstractmethod
    def health(self) -> Health:
        """How the fit went."""

    @abstractmethod
    def __call__(self, seen: Seen) -> Logits:
        """One score per answer for each input."""


class Inference(ABC):
    """Something an adversary can conclude. Every implementation is a frozen dataclass: its settings are its fields."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is called in results."""

    @property
    def hears_all(self) -> bool:
        """Whether it hears every release of an input; others hear the first alone."""
        return False

    @abstractmethod
    def truth(self, y: Labels) -> Labels:
        """The right answers for inputs of these classes."""

    @abstractmethod
    def fit(self, known: Knowledge, *, seed: int, watch: Watch | None = None, state: Path | None = None) -> Guesser:
        """A guesser fitted on `known`; a `UsageError` where that does not suffice."""


@final
@dataclass(frozen=True)
class Probe(Inference):
    """Reads the class from z_sent, or with `groups` (one group number per class) an attribute of it.

    Without `hidden` it is linear; with it, there is one hidden layer of that many units. `attribute` names what the
    groups are about, in results and file names: two of them need two names.

    >>> Probe(groups=(0, 0, 1, 1), attribute="animal").name
    'animal-probe-linear'
    """

    hidden: int | None = None
    groups: tuple[int, ...] | None = None
    batch: int = 256
    plan: Plan = field(default_factory=lambda: Plan(steps=6000, lr=2e-3, weight_decay=0.05, ema=0.99))
    attribute: str = field(default="attribute", repr=False)  # a name is no setting: it changes nothing that is found

    def __post_init__(self) -> None:
        if self.hidden is not None:
            at_least("hidden", self.hidden, 1, hint="leave it out for a linear probe")
        if self.groups is not None and (len(set(self.groups)) < 2 or min(self.groups) < 0):
            raise UsageError(f"groups must be numbers from 0, at least two different ones, got {self.groups}")
        if self.attribute == LABEL or not NAME.fullmatch(self.attribute):
            raise UsageError(f"attribute wants letters, digits and dashes, and not {LABEL!r}, got {self.attribute!r}")

    @property
    def name(self) -> str:
        return f"{LABEL if self.groups is None else self.attribute}-probe-{'mlp' if self.hidden else 'linear'}"

    def truth(self, y: Labels) -> Labels:
        return y if self.groups is None else torch.tensor(self.groups, device=y.device)[y]

    def fit(self, known: Knowledge, *, seed: int, watch: Watch | None = None, state: Path | None = None) -> Guesser:
        if known.pairs is None or known.selection is None or known.n_classes is None:
            raise UsageError(f"{self.name!r} needs paired queries of labeled images; {known.threat.name} grants none")
        if self.groups is not None and len(self.groups) != known.n_classes:
            raise UsageError(f"groups wants a number for each of {known.n_classes} classes, got {len(self.groups)}")
        pairs, device = known.pairs, known.pairs.device
        own = pairs.first(N_CALIBRATED, source=SeededSource(seed, "probe", "own"))
        selection = known.selection.first(N_SCORED, source=SeededSource(seed, "probe", "selection"))
        network = self._build(own, known.n_classes, seed)
        order = Shuffled(len(pairs), size=self.batch, seed=seed, device=device)

        def loss(network: nn.Module, step: int) -> Tensor:
            drawn = pairs.draw(order(step), source=SeededSource(seed, "probe", step), augment=True)
            return self._charge(network, drawn)

        def score(network: nn.Module) -> Tensor:
            return self._charge(network, selection)

        return _Guessed(fit(network, loss=loss, score=score, plan=self.plan, progress=watch, state=state))

    def _charge(self, network: nn.Module, pairs: Pairs) -> Tensor:
        """Cross-entropy; images without a label (−1) are passed over."""
        y = pairs.seen.y
        assert y is not None
        known = y >= 0
        truth = torch.where(known, self.truth(y.clamp_min(0)), -1)
        total = F.cross_entropy(network(pairs.seen.z_sent[0]), truth, ignore_index=-1, reduction="sum")
        return total / known.sum().clamp_min(1)

    def _build(self, own: Pairs, n_classes: int, seed: int) -> nn.Module:
        n_answers = n_classes if self.groups is None else max(self.groups) + 1
        features = own.seen.z_sent[0]
        dim = features[0].numel()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(seed, "probe"))
            layers: list[nn.Module] = [nn.Flatten(), _Standardize(dim)]
            if self.hidden:
                layers += [nn.Linear(dim, self.hidden), nn.ReLU()]
            layers.append(nn.Linear(self.hidden or dim, n_answers))
            network = nn.Sequential(*layers).to(features.device)
        standardize = network[1]
        assert isinstance(standardize, _Standardize)
        standardize.calibrate(features.flatten(1))
        return network


@final
class _Guessed(Guesser):
    def __init__(self, fitted: Fitted) -> None:
        self._network = fitted.network
        self._health = Health(steps=fitted.checks[-1].step, still_falling=fitted.still_falling)

    @property
    def health(self) -> Health:
        return self._health

    @torch.no_grad()
    def __call__(self, seen: Seen) -> Logits:
        logits: Tensor = self._network(seen.z_sent[0])
        return logits


class _Standardize(nn.Module):
    """Features in units of their own spread."""

    shift: Tensor
    scale: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))

    @torch.no_grad()
    def calibrate(self, features: Tensor) -> None:
        """Take the units from these."""
        std, mean = torch.std_mean(features, 0)
        self.shift.copy_(mean)
        self.scale.copy_(1 / std.clamp_min(TINY))

    def forward(self, features: Tensor) -> Tensor:
        return (features - self.shift) * self.scale
