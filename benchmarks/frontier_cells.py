"""One cell of the frontier: a client trained with one surrogate, and what is measured on it."""

import math
import time
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import torch

from splitveil.attacks.decoder import DecoderAttack
from splitveil.attacks.knowledge import grant
from splitveil.attacks.oracle import ClientOracle
from splitveil.attacks.pairs import QueriedPairs
from splitveil.attacks.threat import Box, Threat
from splitveil.bounds import channel_of, encoded, parts_of, readings
from splitveil.cli.runs import environment
from splitveil.data import Augment, ImageSet
from splitveil.fitting import Plan
from splitveil.mechanisms import Gaussian
from splitveil.metrics import interval, mse, ssim
from splitveil.networks import small_cnn, vgg11
from splitveil.networks.decoders import Rung
from splitveil.randomness import SeededSource
from splitveil.regularizers import entropy
from splitveil.regularizers.base import Regularizer
from splitveil.split import Bottleneck, Normalize, Split, cut
from splitveil.training import Recipe, Term, Weight, accuracy, train

NETWORKS = {"vgg11": vgg11, "small-cnn": small_cnn}


@dataclass(frozen=True)
class Cell:
    """One point of the frontier."""

    name: str  # a surrogate, or "noise"
    weight: float
    std: float
    seed: int
    batch: int = 512
    after: str = ""  # where the network is cut; its own default place where empty

    @property
    def file(self) -> str:
        """The name of the file with its numbers."""
        more = f"-b{self.batch}" * (self.batch != 512) + f"-{self.after.rpartition('.')[2]}" * bool(self.after)
        return f"{self.name}-w{self.weight:g}-std{self.std:g}{more}-seed{self.seed}.json"


@dataclass(frozen=True)
class Budget:
    """How long networks are fitted."""

    epochs: int
    attack_steps: int
    network: str = "vgg11"
    rung: Rung = "residual"  # of the decoder that attacks


def measure(cell: Cell, data: ImageSet, budget: Budget, device: torch.device) -> dict[str, Any]:
    """Train the cell's client and measure it."""
    start = time.monotonic()
    split, history = _train(cell, data, budget, device)
    trained = time.monotonic() - start
    attacked = _attack(cell, split, data, budget)
    return {
        "cell": asdict(cell),
        "budget": asdict(budget),
        "accuracy": accuracy(split, data.victims, seed=0),
        **attacked,
        **_bits(split, data),
        "gauges": {k: v for k, v in history[-1].items() if k not in ("seconds", "epoch")},
        "seconds": {"training": round(trained, 1), "all": round(time.monotonic() - start, 1)},
        "environment": environment(),
    }


def _train(
    cell: Cell, data: ImageSet, budget: Budget, device: torch.device
) -> tuple[Split, tuple[dict[str, Any], ...]]:
    torch.manual_seed(cell.seed)
    network = NETWORKS[budget.network]
    split = cut(
        network(n_classes=data.n_classes, image_shape=data.image_shape),
        after=cell.after or network.cut,
        bottleneck=Bottleneck(channels=8, activation="sigmoid"),
        mechanism=Gaussian(std=cell.std),
        normalize=Normalize(mean=(0.5,) * data.image_shape[0], std=(0.25,) * data.image_shape[0]),
        example=torch.zeros(2, *data.image_shape),
    )
    recipe = Recipe(
        epochs=budget.epochs,
        batch_size=cell.batch,
        lr=0.1 * math.sqrt(cell.batch / 512),
        warmup_epochs=2,
        augment=Augment(crop=4, flip=True) if budget.network == "vgg11" else Augment(crop=2),
        precision="bf16" if device.type == "cuda" else "float32",
        channels_last=True,
        seed=cell.seed,
    )
    terms = []
    if cell.name != "noise":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the literal presets warn of what is to be shown here
            terms = [Term(cell.name, _surrogate(cell.name), Weight(cell.weight, warmup_epochs=2))]
    trained = train(split, data, recipe, regularizers=terms, device=str(device))
    return trained.split, trained.history


def _surrogate(name: str) -> Regularizer:
    """The preset of this name. All were measured without gates, so `staged` leaves the class gate of its slots out."""
    if name == "staged":
        return entropy.staged(parts=entropy.Parts(gates=entropy.Gating()))
    made: Regularizer = getattr(entropy, name)()
    return made


def _attack(cell: Cell, split: Split, data: ImageSet, budget: Budget) -> dict[str, Any]:
    oracle = ClientOracle(split.client)
    known = grant(
        Threat(Box.BLACK, insider=True),
        oracle=oracle,
        auxiliary=data.auxiliary,
        selection=data.selection,
        private=data.train,
        n_classes=data.n_classes,
    )
    plan = Plan(steps=budget.attack_steps, check_every=max(100, budget.attack_steps // 10))
    inverter = DecoderAttack(budget.rung, plan=plan).fit(known, seed=cell.seed)
    pairs = QueriedPairs(data.victims, oracle).first(len(data.victims), source=SeededSource(0, "victims"))
    x_hat = inverter(pairs.seen)
    error = mse(pairs.x, x_hat)
    return {
        "mse": asdict(interval(error)),
        "ssim": float(ssim(pairs.x, x_hat).mean()),
        "mean_image_mse": float((pairs.x - pairs.x.mean(0)).square().mean()),
        "attack": asdict(inverter.health),
    }


def _bits(split: Split, data: ImageSet) -> dict[str, Any]:
    """The bound and its interval, in bits."""
    _, chosen = readings(encoded(channel_of(split.client), parts_of(data)))
    return {"bits": asdict(chosen.interval), "bits_groups": chosen.groups}
