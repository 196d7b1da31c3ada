"""A noise-protected VGG11 client on CIFAR-10: accuracy on the victims and seconds an epoch.

    python benchmarks/cifar10_client.py DATA --std 0.025 --epochs 60 --out results/cifar10-client.json

DATA is the folder that holds CIFAR-10. One network, one seed a call; trained on the 48,000 images of the train role,
its checkpoint chosen on the selection role, measured on victims that chose nothing.
"""

import argparse
import itertools
import statistics
from pathlib import Path
from typing import Any

import torch
from measuring import publish

from splitveil.cli.runs import environment
from splitveil.data import Augment, read
from splitveil.mechanisms import Gaussian
from splitveil.networks import vgg11
from splitveil.split import Bottleneck, Normalize, cut
from splitveil.training import Recipe, accuracy, train


def measure(data_path: str, *, std: float, epochs: int, seed: int, device: str, compile: bool) -> dict[str, Any]:
    """Train one client and measure it."""
    data = read(data_path)
    torch.manual_seed(seed)
    split = cut(
        vgg11(n_classes=data.n_classes, image_shape=data.image_shape),
        after=vgg11.cut,
        bottleneck=Bottleneck(channels=8, activation="sigmoid"),
        mechanism=Gaussian(std=std),
        normalize=Normalize(mean=(0.5,) * 3, std=(0.25,) * 3),
        example=torch.zeros(2, *data.image_shape),
    )
    recipe = Recipe(
        epochs=epochs,
        batch_size=256,
        lr=0.1,
        weight_decay=5e-4,
        warmup_epochs=2,
        augment=Augment(crop=4, flip=True),
        precision="bf16",
        channels_last=True,
        compile=compile,
        seed=seed,
    )
    trained = train(split, data, recipe, device=device)
    place = split.device
    marks = [0.0, *(record["seconds"] for record in trained.history)]
    return {
        "data": {"name": data.name, "train": len(data.train), "sha256": data.sha256},
        "network": "vgg11 cut after two convolutions, 8×8×8 sigmoid bottleneck",
        "encoder_parameters": sum(p.numel() for p in split.client.encoder.parameters()),
        "noise_std": std,
        "epochs": epochs,
        "seed": seed,
        "accuracy": {
            "selection": trained.selection_accuracy,
            "victims": accuracy(split, data.victims.to(place), seed=seed),
        },
        "seconds": {
            "total": round(trained.seconds, 1),
            "median_epoch": round(statistics.median(b - a for a, b in itertools.pairwise(marks)), 2),
        },
        "environment": environment(),
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--std", type=float, default=0.025)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    result = measure(
        words.data, std=words.std, epochs=words.epochs, seed=words.seed, device=words.device, compile=words.compile
    )
    result["command"] = (
        f"python benchmarks/cifar10_client.py DATA --std {words.std} --epochs {words.epochs} --seed {words.seed}"
    )
    publish(result, words.out)


if __name__ == "__main__":
    main()
