"""How long `standard` takes on one client: bounds, judges, every trial and the result, the helpers' start included.

    python benchmarks/standard.py DATA --work kept/suite --workers 6 --out results/standard-cuda.json
    python benchmarks/standard.py fashion --device cpu --workers 2 --epochs 1 --suite cheap

DATA and --work as in `benchmarks/suite.py`: the client is the one that it trains, and the trials that are finished here
are cells there. Exit code 1 above ten minutes.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from ladder_cells import pack, unpack, weights
from measuring import publish
from suite_networks import KINDS, Client, opened, train_one
from torch import nn

from splitveil.bounds import bounds_of
from splitveil.cli.runs import environment
from splitveil.data import ImageSet, read
from splitveil.evaluation import Claims, evaluate, prepare, suite_named, take_part
from splitveil.split import Client as SplitClient

MOST_SECONDS = 600.0
RELEASES = 16  # the most that `standard` averages


def measure(
    words: argparse.Namespace, client: SplitClient, head: nn.Module | None, data: ImageSet, place: Path
) -> dict[str, Any]:
    """Play the suite among the workers, this process one of them, and say what it took."""
    began = time.monotonic()
    bounds = bounds_of(client, data, releases=(1, RELEASES))
    claims = Claims(place)
    claims.clear()
    prepare(client, words.suite, data, out=place, head=head)
    before = time.monotonic() - began
    others = [subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--helper"]) for _ in range(words.workers - 1)]
    take_part(client, words.suite, data, out=place, head=head)
    for each in others:
        each.wait()
    claims.close()
    result = evaluate(client, words.suite, data, out=place, bounds=bounds, head=head, keep_priors=True)
    seconds = time.monotonic() - began
    return {
        "suite": words.suite,
        "client": words.client,
        "workers": words.workers,
        "victims": result.n_victims,
        "seconds": round(seconds, 1),
        "seconds_before_attacks": round(before, 1),
        "sum_of_attack_seconds": round(sum(each.seconds for each in result.attacks), 1),
        "headline": {"attack": result.headline, "mse": result.best.mse.mean},
        "attacks": {each.name: {"seconds": round(each.seconds, 1), "mse": each.mse.mean} for each in result.attacks},
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--work", type=Path, default=Path("kept/suite"), help="folder for the client and the trials")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--suite", default="standard")
    parser.add_argument("--workers", type=int, default=1, help="processes side by side")
    parser.add_argument("--client", choices=KINDS, default="noise")
    parser.add_argument("--std", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--helper", action="store_true", help=argparse.SUPPRESS)
    words = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    words.work.mkdir(parents=True, exist_ok=True)
    kept = words.work / "data.npz"
    if not kept.exists():
        pack(read(words.data), kept)
    data, client = unpack(kept).to(words.device), Client(words.client, words.std, 0)
    if not weights(client, words.work).exists():  # type: ignore[arg-type]
        train_one(data, client, words, words.work)
    place, (half, head) = words.work / client.slug, opened(data, client, words, words.work)
    if words.helper:
        take_part(half, words.suite, data, out=place, head=head)
        return
    if place.exists() and any(place.iterdir()):
        sys.exit(f"{place} holds work that would not be timed; name another --work")
    found = measure(words, half, head, data, place)
    command = f"python benchmarks/standard.py DATA --device {words.device} --workers {words.workers}"
    publish({"command": command, "most_seconds": MOST_SECONDS, **found, "environment": environment()}, words.out)
    sys.exit(suite_named(words.suite).name == "standard" and found["seconds"] > MOST_SECONDS)


if __name__ == "__main__":
    main()
