"""What the table of the whole suite is made of: a client, a judge, a client's bounds, one trial, one inquiry."""

import argparse
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from ladder_cells import head_weights, make_split, train_client, weights
from safetensors.torch import load_file

from splitveil.attacks import (
    Attack,
    DiffusionAttack,
    GeneratorAttack,
    Recognition,
    Ridge,
    Threat,
    grant,
    oracle_of,
)
from splitveil.attacks.base import Course
from splitveil.bounds import Bound, bounds_of
from splitveil.data import ImageSet
from splitveil.evaluation import Inquiry, Suite, Trial, evaluate, full
from splitveil.evaluation.judges import Judges
from splitveil.evaluation.play import twin_of
from splitveil.evaluation.roles import roles_of
from splitveil.fitting import Plan
from splitveil.regularizers import entropy
from splitveil.regularizers.adversary import Adversary
from splitveil.split import Split
from splitveil.training import Term, Weight

KINDS = ("noise", "surrogate", "adversary")
RELEASES = (1, 16)  # of one input, that the bounds are for
COUNTS = ("steps", "samples", "restarts", "n_tuned")
SEARCHES = ("diffusion", "generator-latent", "optimization-dip")  # that take long for each victim
PRIORS = ("diffusion", "generator-latent")  # attacks whose prior all clients share
FIRST = (  # of `full`: what answers most, and of that what takes longest, so that nothing long is begun at the end
    "decoder-unet-long--white-box-insider",
    "generator-decoder--white-box-outsider",
    "decoder-unet--white-box-insider",
    "shadow-head--query-free-outsider-head-known",
    "shadow--query-free-outsider",
    "diffusion--white-box-outsider",
    "generator-latent--white-box-outsider",
    "decoder-residual--white-box-insider",
    "decoder-residual--white-box-outsider",
    "decoder-residual-mean16--white-box-outsider-16-releases",
    "optimization-decoder--white-box-outsider",
    "optimization-dip--white-box-outsider",
    "decoder-unet-mean16--white-box-insider-16-releases",
    "diffusion--white-box-outsider-16-releases",
    "decoder-residual--black-box-outsider",
    "ridge--white-box-outsider",
    "ridge--white-box-insider",
    "ridge-mean16--white-box-outsider-16-releases",
    "nearest--white-box-outsider",
    "label-probe-linear--white-box-outsider",
    "label-probe-mlp--white-box-outsider",
    "optimization-likelihood--white-box-outsider",
    "optimization-tv--white-box-outsider",
    "decoder-residual--black-box-4096-outsider",
    "decoder-residual--black-box-1024-outsider",
    "decoder-residual--black-box-128-outsider",
    "decoder-conv--white-box-insider",
    "optimization-decoder--white-box-outsider-16-releases",
    "decoder-residual-mean64--white-box-outsider-64-releases",
    "decoder-unet--white-box-outsider",
)
S = TypeVar("S")


@dataclass(frozen=True)
class Client:
    """A client to train: with noise alone, charged by a surrogate, or against a live decoder."""

    kind: str
    std: float
    seed: int

    @property
    def slug(self) -> str:
        return f"{self.kind}-seed{self.seed}"


@dataclass(frozen=True)
class Judge:
    """A classifier that looks at the reconstructions; the same for all clients."""

    insider: bool

    @property
    def slug(self) -> str:
        return f"judge-{'insider' if self.insider else 'outsider'}"


@dataclass(frozen=True)
class Prior:
    """What an attack learns of images alone; the same for all clients."""

    attack: DiffusionAttack | GeneratorAttack
    seed: int

    @property
    def slug(self) -> str:
        return f"prior-{self.attack.name}-seed{self.seed}"


@dataclass(frozen=True)
class Bounds:
    """What no attack on a client can beat."""

    client: Client

    @property
    def slug(self) -> str:
        return f"{self.client.slug}--bounds"


@dataclass(frozen=True)
class Cell:
    """A trial or an inquiry to run on a client."""

    client: Client
    each: Trial | Inquiry

    @property
    def slug(self) -> str:
        return f"{self.client.slug}--{self.each.slug}"


def trials(words: argparse.Namespace) -> list[Trial | Inquiry]:
    """What `full` plays, most informative first; attacks that may be shortened for a smoke test."""
    suite = full()
    wanted = [
        each for each in (*suite.trials, *suite.inquiries) if not words.attacks or each.attack.name in words.attacks
    ]
    wanted.sort(key=lambda each: FIRST.index(each.slug) if each.slug in FIRST else len(FIRST))
    return [replace(each, attack=shortened(each.attack, words.attack_steps)) for each in wanted]


def shortened(settings: S, steps: int | None) -> S:
    """The same settings with at most so many steps, samples and tries, wherever they are counted."""
    if steps is None or not is_dataclass(settings) or isinstance(settings, type):
        return settings
    changes: dict[str, Any] = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name in COUNTS:
            changes[field.name] = min(steps, value)
        elif field.name == "check_every":
            changes["check_every"] = min(value, max(1, steps // 2))
        elif isinstance(value, Plan | Attack):
            changes[field.name] = shortened(value, steps)
        elif field.name == "plan" and value is None:
            changes["plan"] = Plan(steps=steps, check_every=max(1, steps // 2))
    return replace(settings, **changes)  # type: ignore[type-var]


def terms(client: Client, words: argparse.Namespace) -> Sequence[Term]:
    """What this client's encoder is charged for."""
    warm = 2 if words.epochs > 4 else 0
    match client.kind:
        case "surrogate":
            surrogate = getattr(entropy, words.surrogate.replace("-", "_"))()
            return [Term(words.surrogate, surrogate, Weight(words.surrogate_weight, warmup_epochs=warm))]
        case "adversary":
            return [Term("adversary", Adversary(), Weight(words.adversary_weight))]
        case _:
            return []


def train_one(data: ImageSet, client: Client, words: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Train a client and say how it was charged."""
    charged = terms(client, words)
    names = {term.name: term.weight.value for term in charged}
    return {"client": client.kind, "charged": names} | train_client(data, client, words, work, charged)  # type: ignore[arg-type]


def prepare_judge(data: ImageSet, judge: Judge, words: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Train a judge, to be found by every cell."""
    Judges(_recognition(words), roles_of(data), work).prepare(insider=judge.insider)
    return {"judge": judge.slug}


def learn_prior(data: ImageSet, prior: Prior, words: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Learn what an attack knows of images, to be found by every cell: a client that is not trained will do."""
    split = make_split(data, Client("noise", words.std, prior.seed))  # type: ignore[arg-type]
    oracle = oracle_of(split.client.eval().to(words.device))
    known = grant(Threat(), oracle=oracle, auxiliary=data.auxiliary, selection=data.selection, n_classes=data.n_classes)
    fitted = prior.attack.prior(known, Course(prior.seed, state=work / f"{prior.slug}.fit"))
    ready(prior, work).touch()
    facts = {"steps": fitted.checks[-1].step, "seconds": fitted.checks[-1].seconds, "score": fitted.best.score}
    return {"prior": prior.attack.name, "seed": prior.seed, "still_falling": fitted.still_falling} | facts


def ready(prior: Prior, work: Path) -> Path:
    """What is there when a prior is learned."""
    return work / f"{prior.slug}.ready"


def opened(data: ImageSet, client: Client, words: argparse.Namespace, work: Path) -> Split:
    """A trained client with its server's half."""
    split = make_split(data, client)  # type: ignore[arg-type]
    split.client.load_state_dict(load_file(weights(client, work)))  # type: ignore[arg-type]
    split.server.load_state_dict(load_file(head_weights(client, work)))  # type: ignore[arg-type]
    return split.eval().to(words.device)


def bound_one(data: ImageSet, task: Bounds, words: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Every bound of a client, held-out bits among them."""
    split = opened(data, task.client, words, work)
    found = bounds_of(split.client, data, releases=RELEASES)
    return {"client": task.client.kind, "seed": task.client.seed, "bounds": [asdict(bound) for bound in found]}


def attack_one(data: ImageSet, cell: Cell, words: argparse.Namespace, work: Path) -> dict[str, Any]:
    """One trial or inquiry on one client, in a folder of its own."""
    place, seed = work / cell.slug, cell.client.seed
    _fetch(cell, place, work)
    split = opened(data, cell.client, words, work)
    result = evaluate(
        split.client,
        _suite(cell, words),
        data,
        seeds=(seed,),
        out=place,
        bounds=_bounds(cell.client, words),
        keep_samples=False,
        head=split.server,
        keep_priors=True,
    )
    _share((place / "attacks").glob("prior-*.fit"), work)
    facts = {"client": cell.client.kind, "seed": seed, "prior_mse": result.prior_mse, "n_victims": result.n_victims}
    facts |= {"inferences": [asdict(each) for each in result.inferences]}
    if isinstance(cell.each, Inquiry):
        return facts
    measured = next(each for each in result.attacks if each.name == cell.each.name)
    facts |= {"mse_of_searched": _mse_of_first(place, cell, words.searched), "settings": repr(cell.each.attack)}
    return facts | {"attack": asdict(measured)}


def _suite(cell: Cell, words: argparse.Namespace) -> Suite:
    """The cell alone, after what it is a copy of; an inquiry beside the quickest attack."""
    if isinstance(cell.each, Inquiry):
        return Suite("suite", (Trial(Ridge(), Threat()),), words.victims, inquiries=(cell.each,))
    source = source_of(cell.each)
    trials = (cell.each,) if source is None else (source, cell.each)
    victims = words.searched if cell.each.attack.name in SEARCHES else words.victims
    return Suite("suite", trials, victims, recognition=_recognition(words))


def _bounds(client: Client, words: argparse.Namespace) -> list[Bound]:
    """What was proved of the client, to flag an error below it."""
    found = json.loads((words.out / f"{Bounds(client).slug}.json").read_text())
    return [Bound.from_words(each) for each in found["bounds"]]


def _mse_of_first(place: Path, cell: Cell, n: int) -> float:
    """The error on the victims that every attack has seen: what attacks are ranked by."""
    with np.load(place / "attacks" / f"{cell.each.slug}-seed{cell.client.seed}.npz", allow_pickle=False) as file:
        return float(file["score_mse"][:n].mean())


def _fetch(cell: Cell, place: Path, work: Path) -> None:
    """Judges, priors, and trials that are finished elsewhere: by `standard.py`, or that this one is a copy of."""
    (place / "attacks").mkdir(parents=True, exist_ok=True)
    _share(work.glob("judge-*.safetensors"), place)
    _share(work.glob("prior-*.fit"), place / "attacks")
    source = source_of(cell.each)
    each = cell if source is None else Cell(cell.client, source)
    for folder in (work / cell.client.slug, work / each.slug):
        _share((folder / "attacks").glob(f"{each.each.slug}-seed{cell.client.seed}.*"), place / "attacks")


def source_of(each: Trial | Inquiry) -> Trial | None:
    """The trial that this one is a copy of."""
    twin = twin_of(each)
    return None if twin is each or isinstance(twin, Inquiry) else twin


def _share(files: Iterable[Path], folder: Path) -> None:
    """Copy what is not there yet; a whole file or none."""
    for file in files:
        if not (folder / file.name).exists():
            fresh = folder / f".{os.getpid()}-{file.name}"
            shutil.copy(file, fresh)
            os.replace(fresh, folder / file.name)


def _recognition(words: argparse.Namespace) -> Recognition:
    return shortened(Recognition(), words.attack_steps)
