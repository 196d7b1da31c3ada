"""What the table of the whole suite is made of: a client's bounds, one trial, one inquiry."""

import argparse
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from suite_networks import Client, opened, recognition, share, shortened

from splitveil.attacks import Ridge, Threat
from splitveil.bounds import Bound, bounds_of
from splitveil.data import ImageSet
from splitveil.evaluation import Inquiry, Suite, Trial, evaluate, full
from splitveil.evaluation.play import twin_of

RELEASES = (1, 16)  # of one input, that the bounds are for
SEARCHES = ("diffusion", "diffusion-decoder", "generator-latent", "optimization-dip")  # that take long for each victim
PRIORS = ("diffusion", "generator-latent")  # attacks whose prior all clients share
FIRST = (  # of `full`: what answers most, and of that what takes longest; last, four times as long on what is measured
    "decoder-unet-long--white-box-insider",
    "decoder-unet-long--white-box-outsider",
    "decoder-unet-label--white-box-insider-label-known",
    "generator-decoder--white-box-outsider",
    "decoder-unet--white-box-insider",
    "shadow-head--query-free-outsider-head-known",
    "shadow--query-free-outsider",
    "diffusion--white-box-outsider",
    "diffusion-decoder--white-box-outsider",
    "generator-latent--white-box-outsider",
    "decoder-residual--white-box-insider",
    "decoder-residual--white-box-outsider",
    "optimization-decoder--white-box-outsider",
    "decoder-unet-mean16--white-box-insider-16-releases",
    "decoder-unet-mean16--white-box-outsider-16-releases",
    "decoder-residual-mean16--white-box-insider-16-releases",
    "decoder-residual-mean16--white-box-outsider-16-releases",
    "diffusion--white-box-outsider-16-releases",
    "optimization-decoder--white-box-outsider-16-releases",
    "optimization-dip--white-box-outsider",
    "optimization-likelihood--white-box-outsider",
    "optimization-tv--white-box-outsider",
    "decoder-unet--white-box-outsider",
    "decoder-residual--black-box-4096-outsider",
    "decoder-residual--black-box-1024-outsider",
    "decoder-residual--black-box-128-outsider",
    "decoder-residual-logits--white-box-insider-head-known",
    "decoder-residual-logits--white-box-outsider-head-known",
    "decoder-residual-label--white-box-insider-label-known",
    "decoder-residual-label--white-box-outsider-label-known",
    "decoder-residual-lpips--white-box-insider",
    "decoder-residual-lpips--white-box-outsider",
    "decoder-residual-ssim--white-box-insider",
    "decoder-residual-ssim--white-box-outsider",
    "decoder-unet-label--white-box-outsider-label-known",
    "decoder-residual-mean64--white-box-insider-64-releases",
    "decoder-residual-mean64--white-box-outsider-64-releases",
    "decoder-residual-mean4--white-box-insider-4-releases",
    "decoder-residual-mean4--white-box-outsider-4-releases",
    "decoder-conv--white-box-insider",
    "decoder-conv--white-box-outsider",
    "decoder-unet--black-box-4096-outsider",
    "ridge--white-box-insider",
    "ridge--white-box-outsider",
    "ridge-mean4--white-box-outsider-4-releases",
    "ridge-mean16--white-box-outsider-16-releases",
    "ridge-mean64--white-box-outsider-64-releases",
    "ridge--black-box-4096-outsider",
    "ridge--black-box-1024-outsider",
    "ridge--black-box-128-outsider",
    "nearest--white-box-insider",
    "nearest--white-box-outsider",
    "nearest-8--white-box-insider",
    "label-probe-linear--white-box-insider",
    "label-probe-linear--white-box-outsider",
    "label-probe-mlp--white-box-insider",
    "label-probe-mlp--white-box-outsider",
    "decoder-residual-long-mean64--white-box-insider-64-releases",
)


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
    every = [*suite.trials, *suite.inquiries]
    names = sorted({each.attack.name for each in every})
    if unknown := [name for name in words.attacks or () if name not in names]:
        raise SystemExit(f"--attacks: `full` has no {', '.join(unknown)}; it has {', '.join(names)}")
    wanted = [each for each in every if not words.attacks or each.attack.name in words.attacks]
    wanted.sort(key=lambda each: FIRST.index(each.slug) if each.slug in FIRST else len(FIRST))
    return [replace(each, attack=shortened(each.attack, words.attack_steps)) for each in wanted]


def bound_one(data: ImageSet, task: Bounds, words: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Every bound of a client, held-out bits among them."""
    client, _ = opened(data, task.client, words, work)
    found = bounds_of(client, data, releases=RELEASES)
    return {"client": task.client.kind, "seed": task.client.seed, "bounds": [asdict(bound) for bound in found]}


def attack_one(data: ImageSet, cell: Cell, words: argparse.Namespace, work: Path) -> dict[str, Any]:
    """One trial or inquiry on one client, in a folder of its own."""
    place, seed = work / cell.slug, cell.client.seed
    if (source := source_of(cell.each)) is not None:
        return _copied(cell, source, words)
    _fetch(cell, place, work)
    client, head = opened(data, cell.client, words, work)
    result = evaluate(
        client,
        _suite(cell, words),
        data,
        seeds=(seed,),
        out=place,
        bounds=_bounds(cell.client, words),
        keep_samples=False,
        head=head,
        keep_priors=True,
    )
    share((place / "attacks").glob("prior-*.fit"), work)
    facts = {"client": cell.client.kind, "seed": seed, "prior_mse": result.prior_mse, "n_victims": result.n_victims}
    facts |= {"inferences": [asdict(each) for each in result.inferences]}
    if isinstance(cell.each, Inquiry):
        return facts
    measured = next(each for each in result.attacks if each.name == cell.each.name)
    facts |= {"mse_of_searched": _mse_of_first(place, cell, words.searched), "settings": repr(cell.each.attack)}
    stored = json.loads((place / "attacks" / f"{cell.each.slug}-seed{seed}.json").read_text())
    facts |= {"chosen": stored["health"]["chosen"]}
    return facts | {"attack": asdict(measured)}


def _copied(cell: Cell, source: Trial, words: argparse.Namespace) -> dict[str, Any]:
    """The cell of a trial that is another's twin: the same fit and the same answers under another threat model."""
    found: dict[str, Any] = json.loads((words.out / f"{Cell(cell.client, source).slug}.json").read_text())
    found["attack"]["knowledge"] = cell.each.threat.name
    for each in found["inferences"]:
        each["knowledge"] = cell.each.threat.name
    return found | {"copy_of": source.name}


def _suite(cell: Cell, words: argparse.Namespace) -> Suite:
    """The cell alone; an inquiry beside the quickest attack."""
    if isinstance(cell.each, Inquiry):
        return Suite("suite", (Trial(Ridge(), Threat()),), words.victims, inquiries=(cell.each,))
    is_search = cell.each.attack.name in SEARCHES
    victims = min(words.searched, words.victims or words.searched) if is_search else words.victims
    return Suite("suite", (cell.each,), victims, recognition=recognition(words))


def _bounds(client: Client, words: argparse.Namespace) -> list[Bound]:
    """What was proved of the client, to flag an error below it."""
    found = json.loads((words.out / f"{Bounds(client).slug}.json").read_text())
    return [Bound.from_words(each) for each in found["bounds"]]


def _mse_of_first(place: Path, cell: Cell, n: int) -> float:
    """The error on the victims that every attack has seen: what attacks are ranked by."""
    with np.load(place / "attacks" / f"{cell.each.slug}-seed{cell.client.seed}.npz", allow_pickle=False) as file:
        return float(file["score_mse"][:n].mean())


def _fetch(cell: Cell, place: Path, work: Path) -> None:
    """Judges, priors, and what `standard.py` has finished."""
    (place / "attacks").mkdir(parents=True, exist_ok=True)
    share(work.glob("judge-*.safetensors"), place)
    share(work.glob("prior-*.fit"), place / "attacks")
    finished = work / cell.client.slug / "attacks"
    share(finished.glob(f"{cell.each.slug}-seed{cell.client.seed}.*"), place / "attacks")


def source_of(each: Trial | Inquiry) -> Trial | None:
    """The trial that this one is a copy of."""
    twin = twin_of(each)
    return None if twin is each or isinstance(twin, Inquiry) else twin
