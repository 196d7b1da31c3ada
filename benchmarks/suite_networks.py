"""What the cells of the whole suite's table share: clients, servers' halves, judges, what attacks know of images."""

import argparse
import hashlib
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from ladder_cells import head_weights, keep_weights, make_split, train_client, weights
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from splitveil.attacks import (
    Attack,
    DiffusionAttack,
    GeneratorAttack,
    Recognition,
    Threat,
    grant,
    oracle_of,
)
from splitveil.attacks.base import REVISION, Course
from splitveil.attacks.views import view
from splitveil.data import ImageSet, Part
from splitveil.evaluation.judges import Judges
from splitveil.evaluation.roles import roles_of
from splitveil.fitting import Plan, Shuffled, fit
from splitveil.randomness import SeededSource, derive
from splitveil.regularizers import entropy
from splitveil.regularizers.adversary import Adversary
from splitveil.split import Client as SplitClient
from splitveil.split import Split
from splitveil.training import Term, Weight, accuracy
from splitveil.types import Features

KINDS = ("noise", "surrogate", "adversary")
NETWORKS = "networks"  # folder of clients and judges, beside the cells
HEAD_BATCH = 256
HEAD = Plan(steps=8000, lr=1e-3, weight_decay=0.1, ema=0.999, check_every=400, patience=8)
COUNTS = ("steps", "samples", "restarts", "n_tuned")
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
class Head:
    """The server's half of a client that is kept without one: an attack that knows it needs one."""

    client: Client

    @property
    def slug(self) -> str:
        return f"{self.client.slug}--head"


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


def train_head(data: ImageSet, head: Head, words: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Train a server's half on what the client sends, which stays as it is; kept in `work`."""
    split, seed = _kept(data, head.client, words, work), head.client.seed
    client, server = split.client.requires_grad_(False), split.server
    part, selection = data.train, data.selection
    order = Shuffled(len(part), size=HEAD_BATCH, seed=derive(seed, "head"), device=part.device)

    def sent(part: Part, rows: Any, *key: int | str, is_fresh: bool = True) -> Features:
        source = SeededSource(seed, "head", *key)
        with torch.no_grad():
            return client(view(part.images(rows), source) if is_fresh else part.images(rows), source=source)

    def loss(network: nn.Module, step: int) -> Tensor:
        rows = order(step)
        return F.cross_entropy(network(sent(part, rows, step)).float(), part.labels[rows])

    def score(network: nn.Module) -> Tensor:
        answers = network(sent(selection, slice(None), "selection", is_fresh=False)).float()
        return F.cross_entropy(answers, selection.labels)

    plan = shortened(HEAD, words.attack_steps).suited(bfloat16=part.device.type == "cuda", channels_last=True)
    sample = (sent(part, order(0), "sample"),)
    fitted = fit(server, loss=loss, score=score, plan=plan, sample=sample)
    keep_weights(server, head_weights(head.client, work))  # type: ignore[arg-type]
    found = accuracy(split, data.victims, seed=seed)
    facts = {"steps": fitted.checks[-1].step, "settings": repr(plan), "accuracy": {"victims": found}}
    return {"client": head.client.kind, "seed": seed, "head": "trained on the client as it was kept"} | facts


def prepare_judge(data: ImageSet, judge: Judge, words: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Train a judge, to be found by every cell."""
    Judges(recognition(words), roles_of(data), work).prepare(insider=judge.insider)
    return {"judge": judge.slug}


def learn_prior(data: ImageSet, prior: Prior, words: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Learn what an attack knows of images, to be found by every cell: a client that is not trained will do."""
    split = make_split(data, Client("noise", words.std, prior.seed))  # type: ignore[arg-type]
    oracle = oracle_of(split.client.eval().to(words.device))
    known = grant(Threat(), oracle=oracle, auxiliary=data.auxiliary, selection=data.selection, n_classes=data.n_classes)
    fitted = prior.attack.prior(known, Course(prior.seed, state=ready(prior, work).with_suffix(".fit")))
    ready(prior, work).touch()
    facts = {"steps": fitted.checks[-1].step, "seconds": fitted.checks[-1].seconds, "score": fitted.best.score}
    return {"prior": prior.attack.name, "seed": prior.seed, "still_falling": fitted.still_falling} | facts


def ready(prior: Prior, work: Path) -> Path:
    """What is there when a prior is learned, with these settings and as this version does."""
    made = hashlib.sha256(repr((REVISION, prior.attack)).encode()).hexdigest()[:8]
    return work / f"{prior.slug}-{made}.ready"


def opened(
    data: ImageSet, client: Client, words: argparse.Namespace, work: Path
) -> tuple[SplitClient, nn.Module | None]:
    """A trained client, and its server's half where that is at hand: it is not published."""
    split = _kept(data, client, words, work)
    if not (head := head_weights(client, work)).exists():  # type: ignore[arg-type]
        return split.client, None
    split.server.load_state_dict(load_file(head))
    return split.client, split.server


def _kept(data: ImageSet, client: Client, words: argparse.Namespace, work: Path) -> Split:
    """A trained client, with a server's half that is not trained."""
    split = make_split(data, client)  # type: ignore[arg-type]
    split.client.load_state_dict(load_file(weights(client, work)))  # type: ignore[arg-type]
    return split.eval().to(words.device)


def take_networks(words: argparse.Namespace, work: Path) -> None:
    """Attack the clients of the table that is there, and show their pictures to the same judges."""
    share((words.out / NETWORKS).glob("*.safetensors"), work)


def keep_networks(words: argparse.Namespace, work: Path) -> None:
    """Put clients and judges beside the cells."""
    (words.out / NETWORKS).mkdir(exist_ok=True)
    networks = [*work.glob("*-seed*.safetensors"), *work.glob("judge-*.safetensors")]
    share((file for file in networks if not file.name.endswith(".head.safetensors")), words.out / NETWORKS)


def share(files: Iterable[Path], folder: Path) -> None:
    """Copy what is not there yet; a whole file or none."""
    for file in files:
        if not is_half(file) and not (folder / file.name).exists():
            fresh = folder / f".{os.getpid()}-{file.name}"
            shutil.copy(file, fresh)
            os.replace(fresh, folder / file.name)


def is_half(file: Path) -> bool:
    """Whether someone is writing it, or was when killed."""
    return ".part-" in file.name


def recognition(words: argparse.Namespace) -> Recognition:
    return shortened(Recognition(), words.attack_steps)
