"""How far training on two processes ends from training on one: largest difference of a weight, float64, CPUs (gloo).

    python benchmarks/ranks.py --out results/ranks.json          one minute on two cores

The trainings are those of tests/worlds/ranked.py, which tests/training/test_ranks.py holds to 1e-10: 20 steps with
noise each (crops and flips in all but AdamW's), one of them stopped on one process within an epoch and resumed, and a
run of `splitveil train` of its own.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from measuring import publish
from safetensors.torch import load_file

from splitveil.cli.runs import environment
from splitveil.training.checkpoint import NAME
from worlds import ranked
from worlds.sittings import write_images

MODEL = "model/"  # how the weights of a checkpoint are named
PYTHON = [sys.executable, "-W", "ignore"]
LAUNCH = {1: PYTHON, 2: [*PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]}
LIMIT = 600  # seconds that a side may take


def largest_difference(one: Path, two: Path) -> float:
    """Between the weights of two checkpoints, or of two files that hold nothing but weights."""
    ours, theirs = load_file(one), load_file(two)
    assert ours.keys() == theirs.keys(), f"{one} and {two} do not hold the same tensors"
    weights = [name for name in ours if name.startswith(MODEL)] or list(ours)
    return max((ours[name].double() - theirs[name].double()).abs().max().item() for name in weights)


def play(folder: Path) -> dict[int, Path]:
    """All trainings on one process and on two, from one start."""
    start = folder / "start"
    start.mkdir()
    write_images(start / "images.npz")
    ranked.play(ranked.CASES["kmeans"], out=start / ranked.STOPPED, watcher=ranked.StopInside())
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    made = {n: Path(shutil.copytree(start, folder / str(n))) for n in LAUNCH}
    for n, place in made.items():
        subprocess.run([*LAUNCH[n], ranked.__file__, str(place)], env=env, check=True, timeout=LIMIT)
    return made


def differences(made: dict[int, Path]) -> dict[str, float]:
    """Of every training; a resumed one is compared with the one that was never stopped."""
    one, two = made[1], made[2]
    found = {case: largest_difference(one / case / NAME, two / case / NAME) for case in ranked.CASES}
    found[ranked.STOPPED] = largest_difference(one / "kmeans" / NAME, two / ranked.STOPPED / NAME)
    halves = [f"{ranked.CLI_RUN}/model/{half}.safetensors" for half in ("encoder", "head")]
    found["splitveil train, kmeans"] = max(largest_difference(one / half, two / half) for half in halves)
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = differences(play(Path(folder)))
    facts = {"processes": [1, 2], "device": "cpu", "backend": "gloo", "precision": "float64"}
    result = {"command": "python benchmarks/ranks.py", **facts, "largest_difference": found}
    publish({**result, "environment": environment()}, words.out)


if __name__ == "__main__":
    main()
