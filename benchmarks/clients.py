"""Other networks and other images: a noise-only client of each, its accuracy, and what the decoder ladder rebuilds.

    python benchmarks/clients.py CIFAR10 --clients resnet20 vit --device cuda --out results/clients
    python benchmarks/clients.py facescrub12-64.npz --clients vgg11 --epochs 60 --batch 64 --out results/clients

One process a client, one JSON a client and seed. Clients are cut at their reference's own place with a sigmoid
bottleneck of 8 channels. The attacks are the ones `standard` runs; their victims are the data's own. Of people only
numbers are kept.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from ladder_cells import Cell, make_trial
from ladder_cells import Client as LadderClient
from torch import multiprocessing as mp

from splitveil.cli.runs import environment
from splitveil.data import Augment, ImageSet, read
from splitveil.evaluation import Suite, evaluate
from splitveil.mechanisms import Gaussian
from splitveil.networks import mobilenet_v2, resnet18, resnet20, vgg11, vit
from splitveil.split import Bottleneck, Normalize, Split, cut
from splitveil.training import Recipe, accuracy, train

NETWORKS = {"vgg11": vgg11, "resnet20": resnet20, "resnet18": resnet18, "mobilenet_v2": mobilenet_v2, "vit": vit}
ATTACKS = ("ridge", "conv", "residual", "unet")
RATES = {"vit": 0.02}  # tokens and layer norms want a lower one than the convolutional networks' 0.1


@dataclass(frozen=True)
class Job:
    """One client to train and attack."""

    data: str
    network: str
    std: float
    seed: int
    words: argparse.Namespace

    def file(self, name: str) -> Path:
        """Where its numbers go."""
        return self.words.out / f"{name}-{self.network}-std{self.std:g}-seed{self.seed}.json"


def make_split(job: Job, data: ImageSet) -> Split:
    """The reference network at its own cut."""
    torch.manual_seed(job.seed)
    reference = NETWORKS[job.network]
    channels = data.image_shape[0]
    return cut(
        reference(n_classes=data.n_classes, image_shape=data.image_shape),
        after=reference.cut,
        bottleneck=Bottleneck(channels=8, activation="sigmoid"),
        mechanism=Gaussian(std=job.std),
        normalize=Normalize(mean=(0.5,) * channels, std=(0.25,) * channels),
        example=torch.zeros(2, *data.image_shape),
    )


def measure(job: Job) -> None:
    """Train, attack, write."""
    torch.set_num_threads(2)
    data, words = read(job.data), job.words
    if job.file(data.name).exists():
        return
    split = make_split(job, data)
    recipe = Recipe(
        epochs=words.epochs,
        batch_size=words.batch,
        lr=words.lr or RATES.get(job.network, 0.1) * words.batch / 256,
        optimizer=words.optimizer,
        weight_decay=0.05 if words.optimizer == "adamw" else 5e-4,
        warmup_epochs=2,
        augment=Augment(crop=4, flip=True),
        precision="bf16" if words.device == "cuda" else "float32",
        channels_last=True,
        seed=job.seed,
    )
    trained = train(split, data, recipe, device=words.device)
    found = accuracy(split, data.victims.to(split.device), seed=job.seed)
    print(f"{data.name} {job.network} seed {job.seed}: {found:.4f} in {trained.seconds:.0f} s", flush=True)
    write(job, data, trained.selection_accuracy, found, trained.seconds, attack(job, split, data))


def attack(job: Job, split: Split, data: ImageSet) -> list[dict[str, Any]]:
    """Every rung asked for, as insider and outsider."""
    client = LadderClient(job.std, job.seed)
    trials = [
        make_trial(Cell(client, name, insider), job.words) for name in job.words.attacks for insider in (True, False)
    ]
    suite = Suite("ladder", tuple(trials), job.words.victims)
    result = evaluate(split.client.to(job.words.device), suite, data, seeds=(job.seed,), keep_samples=False)
    return [asdict(each) | {"prior_mse": result.prior_mse} for each in result.attacks]


def write(job: Job, data: ImageSet, selection: float, victims: float, seconds: float, attacks: Any) -> None:
    """One file, whole or not at all."""
    words = job.words
    given = f"--clients {job.network} --std {job.std:g} --epochs {words.epochs} --batch {words.batch}"
    given += f" --optimizer {words.optimizer}" + (f" --lr {words.lr:g}" if words.lr else "")
    given += f" --steps {words.steps}" if words.steps else ""
    numbers = {
        "command": f"python benchmarks/clients.py DATA {given} --device {words.device} --seeds {job.seed}",
        "data": {"name": data.name, "train": len(data.train), "victims": len(data.victims), "sha256": data.sha256},
        "client": {"network": job.network, "cut": NETWORKS[job.network].cut, "noise_std": job.std, "seed": job.seed},
        "accuracy": {"victims": victims, "selection": selection},
        "training_seconds": round(seconds, 1),
        "attacks": attacks,
        "environment": environment(),
    }
    part = job.file(data.name).with_suffix(".part")
    part.write_text(json.dumps(numbers, indent=2, ensure_ascii=False) + "\n")
    part.rename(job.file(data.name))
    for each in attacks:
        mse, leak = each["mse"]["mean"], each["leak"]["mean"]
        print(
            f"{data.name} {job.network} {each['attack']} ({each['knowledge']}): {mse:.4f} leak {leak:.3f}", flush=True
        )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--clients", nargs="+", choices=list(NETWORKS), default=["resnet20", "vit"])
    parser.add_argument(
        "--attacks", nargs="+", choices=["ridge", "conv", "residual", "unet"], default=["residual", "ridge"]
    )
    parser.add_argument("--std", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    parser.add_argument("--lr", type=float, help="learning rate; the network's own by default")
    parser.add_argument("--steps", type=int, help="at most so many steps of a decoder; the suite's own by default")
    parser.add_argument("--victims", type=int, help="at most so many victims; all by default")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("results/clients"))
    words = parser.parse_args()
    words.out.mkdir(parents=True, exist_ok=True)
    jobs = [Job(d, n, words.std, s, words) for d in words.data for n in words.clients for s in words.seeds]
    team = [mp.get_context("spawn").Process(target=measure, args=(job,)) for job in jobs]
    for member in team:
        member.start()
    for member in team:
        member.join()


if __name__ == "__main__":
    main()
