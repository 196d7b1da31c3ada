"""The same training on one process or on several: 20 float64 steps with noise, augmentation and penalties.

    python tests/worlds/ranked.py FOLDER
    python -m torch.distributed.run --nproc-per-node 2 tests/worlds/ranked.py FOLDER

Checkpoints and metrics of each case are left in FOLDER by the first process.
"""

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from splitveil.cli.main import run
from splitveil.data import Augment
from splitveil.regularizers.entropy import kmeans, plain
from splitveil.split import Split
from splitveil.training import Recipe, Report, Term, Trained, Watcher, Weight, train
from worlds.small import small_images, small_split

RECIPE = Recipe(epochs=2, batch_size=16, lr=0.05, augment=Augment(crop=1, flip=True), precision="float64")  # 20 steps
STOPPED = "kmeans, stopped on one process and resumed"
CLI_RUN = "cli"


@dataclass(frozen=True)
class Case:
    """What one training is made of."""

    penalties: tuple[str, ...] = ()
    recipe: Recipe = RECIPE
    apart: Mapping[str, float] = field(default_factory=dict)

    def terms(self) -> list[Term]:
        kinds = {"plain": plain, "kmeans": kmeans}
        return [Term(name, kinds[name](), Weight(0.05), **self.apart) for name in self.penalties]


CASES = {
    "no penalty": Case(),
    "plain": Case(("plain",)),
    "kmeans": Case(("kmeans",)),
    "plain and kmeans, clipped and smoothed apart": Case(
        ("plain", "kmeans"), apart={"clip_norm": 0.1, "gradient_decay": 0.5}
    ),
    "kmeans, AdamW, clipped": Case(
        ("kmeans",), Recipe(epochs=2, batch_size=16, lr=1e-3, optimizer="adamw", clip_norm=1.0, precision="float64")
    ),
}


class StopInside(Watcher):
    """Presses Ctrl-C in the epoch after the first."""

    def step(self, report: Report) -> None: ...

    def epoch(self, report: Report, record: Mapping[str, Any]) -> None:
        signal.raise_signal(signal.SIGINT)

    def note(self, line: str) -> None: ...


def make(n_classes: int) -> nn.Sequential:
    """A network without batch statistics, for the command line."""
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16 * 16, n_classes))


def fresh_split() -> Split:
    return small_split(batch_norm=False)


def play(case: Case, **options: Any) -> Trained:
    data = small_images(n_train=160)
    return train(fresh_split(), data, case.recipe, regularizers=case.terms(), device="cpu", **options)


def cli_words(*, epochs: int = 3, out: str = CLI_RUN) -> list[str]:
    """A run of the command line in float64."""
    settings = {
        "data.source": "images.npz",
        "model.name": "worlds.ranked:make",
        "model.cut": "1",
        "model.bottleneck": "null",
        "regularizers": "[{name: kmeans, weight: 0.01}]",
        "training.epochs": str(epochs),
        "training.batch_size": "32",
        "training.precision": "float64",
    }
    return ["train", *(f"--set={k}={v}" for k, v in settings.items()), "--device=cpu", f"--out={out}"]


def main(folder: Path) -> None:
    """Play every case, go on with a stopped run, and train by the command line."""
    torch.set_num_threads(1)
    for name, case in CASES.items():
        play(case, out=folder / name)
    play(CASES["kmeans"], out=folder / STOPPED, resume=True)
    os.chdir(folder)
    run(cli_words())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
