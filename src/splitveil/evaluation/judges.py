"""Who looks at reconstructions: networks that know the attacker's images, and what they see in each.

    recognized   the class is named right             found1, found5   the person is among the k nearest photos
    …_original   the same judge on the victim's own image: no reconstruction can be expected to do better

A judge is trained on images that its threat model grants, never on victims; it is kept beside the finished trials.
"""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import final

import torch

from splitveil.attacks import Gallery, Health, Recognition, Recognizer, Threat, Watch
from splitveil.attacks.recognition import health_in
from splitveil.data import Part
from splitveil.evaluation.gauge import NOTHING, Gauge, Spent
from splitveil.evaluation.roles import Roles
from splitveil.metrics import Scores
from splitveil.types import Images, Labels
from splitveil.writing import read_tensors

RANKS = (1, 5)  # k of R@k
SPENT = "spent"  # among the words that are kept with a judge


@final
class Judges:
    """Recognizers of one evaluation, each trained when it is first needed."""

    def __init__(self, recognition: Recognition, roles: Roles, folder: Path | None) -> None:
        self.recognition, self._roles, self._folder = recognition, roles, folder
        self._known: dict[bool, Recognizer | None] = {}
        self._gallery: Gallery | None = None
        self._gathering = NOTHING  # what the gallery took

    def scores(self, x: Images, x_hat: Images, y: Labels, threat: Threat) -> dict[str, Scores]:
        """What is seen in reconstructions of these victims, and in the victims themselves."""
        seen: dict[str, Scores] = {}
        if (recognizer := self._recognizer(threat.insider)) is not None:
            for suffix, images in (("", x_hat), ("_original", x)):
                seen[f"recognized{suffix}"] = (recognizer.logits(images).argmax(1) == y).float()
        if (gallery := self._photos()) is not None:
            for k in RANKS:
                for suffix, images in (("", x_hat), ("_original", x)):
                    seen[f"found{k}{suffix}"] = gallery.found(images, y, k=k)
        return seen

    def prepare(self, *, insider: bool, watch: Watch | None = None) -> Spent:
        """Train every judge that will look (or find it) before it is needed; what their training took."""
        needed = {insider, True} if has_gallery(self._roles) else {insider}
        judges = [self._recognizer(each, watch) for each in sorted(needed)]
        self._photos()
        return sum((_took(judge) for judge in judges if judge is not None), self._gathering)

    def health(self, *, insider: bool) -> Health:
        """How the training of a judge went, here or when it was kept; none is trained to tell."""
        if (judge := self._known.get(insider)) is not None:
            return judge.health
        kept = self._place(insider)
        found = None if kept is None else read_tensors(kept)
        return Health() if found is None else health_in(found[1])

    def _recognizer(self, insider: bool, watch: Watch | None = None) -> Recognizer | None:
        """The one that this attacker could train; none where its images have no labels."""
        if insider not in self._known:
            own = attackers_images(self._roles, insider)
            can = self._roles.n_classes is not None and self.recognition.can_learn(own)
            self._known[insider] = self._fit(own, insider, watch) if can else None
        return self._known[insider]

    @torch.enable_grad()
    def _fit(self, own: Part, insider: bool, watch: Watch | None) -> Recognizer:
        assert self._roles.n_classes is not None
        who, kept = _who(insider), self._place(insider)
        how = hashlib.sha256(repr(self.recognition).encode()).hexdigest()[:16]
        told = None if watch is None else lambda check: watch(replace(check, what=f"judge of an {who}"))
        with Gauge(own.device, kept and kept.with_name(f"{kept.name}.{how}")) as gauge:
            recognizer = self.recognition.fit(
                own,
                self._roles.selection,
                n_classes=self._roles.n_classes,
                watch=gauge.watched(told),
                kept=kept,
                took=lambda: {SPENT: gauge.read().to_json()},
            )
        gauge.forget()
        return recognizer

    def _place(self, insider: bool) -> Path | None:
        """Where this judge is kept; None where nothing is."""
        name = f"judge-{_who(insider)}-{self._roles.sha256[:8]}.safetensors"
        return None if self._folder is None else self._folder / name

    def _photos(self) -> Gallery | None:
        if not has_gallery(self._roles):
            return None
        if self._gallery is None and (recognizer := self._recognizer(insider=True)) is not None:
            with Gauge(self._roles.auxiliary.device, None) as gauge:
                self._gallery = Gallery(recognizer, gallery_of(self._roles))
                self._gathering = gauge.read()
        return self._gallery


def _who(insider: bool) -> str:
    return "insider" if insider else "outsider"


def _took(judge: Recognizer) -> Spent:
    """What its training took; one that an older version kept tells its seconds alone."""
    return Spent.from_json(judge.words.get(SPENT, "")) or Spent(float(judge.words.get("seconds", 0.0)), None)


def attackers_images(roles: Roles, insider: bool) -> Part:
    """The images an attacker has of its own."""
    return roles.auxiliary.joined(roles.private) if insider and roles.private is not None else roles.auxiliary


def has_gallery(roles: Roles) -> bool:
    """Whether there are other photos of the people attacked."""
    return roles.people and roles.private is not None and roles.n_classes is not None


def gallery_of(roles: Roles) -> Part:
    """Other photos of the people attacked: those of the private images."""
    assert roles.private is not None
    shown = torch.isin(roles.private.labels, roles.victims.labels)
    return roles.private.select(torch.nonzero(shown).flatten())
