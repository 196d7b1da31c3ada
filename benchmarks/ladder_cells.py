"""What the ladder measures: one client trained with noise, one attack on it."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from splitveil.attacks import DecoderAttack, Ridge, Threat
from splitveil.data import Augment, ImageSet, Part, Role
from splitveil.evaluation import Suite, Trial, evaluate
from splitveil.evaluation.suites import decoder
from splitveil.fitting import Plan
from splitveil.mechanisms import Gaussian
from splitveil.networks import small_cnn, vgg11
from splitveil.split import Bottleneck, Normalize, Split, cut
from splitveil.training import Recipe, Term, accuracy, train


@dataclass(frozen=True)
class Client:
    """A client to train."""

    std: float
    seed: int

    @property
    def slug(self) -> str:
        return f"noise{self.std:g}-seed{self.seed}"


@dataclass(frozen=True)
class Cell:
    """An attack to run on it."""

    client: Client
    attack: str
    insider: bool

    @property
    def slug(self) -> str:
        return f"{self.client.slug}-{self.attack}-{'insider' if self.insider else 'outsider'}"


def make_split(data: ImageSet, client: Client) -> Split:
    """VGG11 as the literature cuts it; a small network where images are too small for it."""
    reference = vgg11 if min(data.image_shape[1:]) >= vgg11.least_size else small_cnn
    torch.manual_seed(client.seed)
    channels = data.image_shape[0]
    return cut(
        reference(n_classes=data.n_classes, image_shape=data.image_shape),
        after=reference.cut,
        bottleneck=Bottleneck(channels=8, activation="sigmoid"),
        mechanism=Gaussian(std=client.std),
        normalize=Normalize(mean=(0.5,) * channels, std=(0.25,) * channels),
        example=torch.zeros(2, *data.image_shape),
    )


def train_client(
    data: ImageSet, client: Client, words: argparse.Namespace, work: Path, terms: Sequence[Term] = ()
) -> dict[str, Any]:
    """Train one client, keep its weights (and the head's) in `work`, and say how accurate it is."""
    on_gpu = words.device != "cpu"
    recipe = Recipe(
        epochs=words.epochs,
        batch_size=256,
        lr=0.1,
        warmup_epochs=2 if words.epochs > 4 else 0.5,
        augment=Augment(crop=4, flip=True),
        precision="bf16" if on_gpu else "float32",
        channels_last=on_gpu,
        seed=client.seed,
    )
    split = make_split(data, client)
    trained = train(split, data, recipe, regularizers=terms, device=words.device)
    place = split.device
    found = accuracy(split, data.victims.to(place), seed=client.seed)
    for half, path in ((split.server, head_weights(client, work)), (split.client, weights(client, work))):
        keep_weights(half, path)
    return {
        "noise_std": client.std,
        "seed": client.seed,
        "epochs": words.epochs,
        "accuracy": {"victims": found, "selection": trained.selection_accuracy},
        "gauges": {name: value for name, value in trained.history[trained.best_epoch].items() if "/" in name},
        "seconds": round(trained.seconds, 1),
    }


def keep_weights(network: nn.Module, path: Path) -> None:
    """A whole file or none."""
    fresh = path.with_suffix(".part")
    save_file({name: value.cpu().contiguous() for name, value in network.state_dict().items()}, fresh)
    os.replace(fresh, path)


def weights(client: Client, work: Path) -> Path:
    """Where a trained client is kept."""
    return work / f"{client.slug}.safetensors"


def head_weights(client: Client, work: Path) -> Path:
    """Where the server's half is kept."""
    return work / f"{client.slug}.head.safetensors"


def make_trial(cell: Cell, words: argparse.Namespace) -> Trial:
    """The attack as `standard` runs it."""
    threat = Threat(insider=cell.insider)
    if cell.attack == "ridge":
        return Trial(Ridge(), threat)
    attack: DecoderAttack = decoder(cell.attack)  # type: ignore[arg-type]
    if words.steps:
        attack = replace(attack, plan=Plan(steps=words.steps, lr=attack.plan.lr, ema=attack.plan.ema))
    return Trial(attack, threat)


def attack_client(data: ImageSet, cell: Cell, words: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Run one attack on one trained client."""
    split = make_split(data, cell.client)
    split.client.load_state_dict(load_file(weights(cell.client, work)))
    suite = Suite("ladder", (make_trial(cell, words),), words.victims)
    place = work / cell.client.slug
    result = evaluate(
        split.client.to(words.device), suite, data, seeds=(cell.client.seed,), out=place, keep_samples=False
    )
    return {
        "noise_std": cell.client.std,
        "seed": cell.client.seed,
        "attack": asdict(result.best),
        "prior_mse": result.prior_mse,
        "n_victims": result.n_victims,
        "lpips_upsampled": result.lpips_upsampled,
        "reasons": result.reasons,
    }


def pack(data: ImageSet, path: Path) -> None:
    """Decoded once for all workers."""
    parts = {role.value: data.part(role).loaded() for role in Role}
    arrays = {f"{name}_pixels": part.pixels.numpy() for name, part in parts.items()}
    arrays |= {f"{name}_labels": part.labels.numpy() for name, part in parts.items()}
    np.savez(path, name=np.array(data.name), n_classes=np.array(data.n_classes), **arrays)


def unpack(path: Path) -> ImageSet:
    """What `pack` wrote."""
    with np.load(path, allow_pickle=False) as file:
        parts = {
            role.value: Part(torch.from_numpy(file[f"{role}_pixels"]), torch.from_numpy(file[f"{role}_labels"]))
            for role in Role
        }
        return ImageSet(name=str(file["name"]), n_classes=int(file["n_classes"]), **parts)
