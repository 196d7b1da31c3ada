"""The decoder ladder against noise-only clients: one JSON cell per configuration and seed, and one table.

    python benchmarks/ladder.py DATA --device cuda --workers 4 --time-budget 480 --out results/ladder

DATA is the folder that holds CIFAR-10 (or any name or file that `splitveil data check` reads). Clients are trained with
noise of each --std and each --seed, then attacked by every rung, as insider and as outsider. Cells that exist are
skipped; the most informative come first; what the time budget leaves over is printed as "not measured". Workers are
processes side by side on one device: each small network alone would leave most of a large accelerator idle.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from ladder_cells import Cell, Client, attack_client, make_trial, pack, train_client, unpack, weights
from workers import claims, do, launch, run_workers, write

from splitveil.cli.runs import environment
from splitveil.data import read
from splitveil.metrics import interval

ATTACKS = ("residual", "unet", "conv", "ridge")  # most informative first


def clients(words: argparse.Namespace) -> list[Client]:
    """All clients, the first seed of every noise first."""
    return [Client(std, seed) for seed in words.seeds for std in words.std]


def cells(words: argparse.Namespace) -> list[Cell]:
    """All cells, most informative first: the first seed's strongest attacks, then its others, then the next seed."""
    return [
        Cell(Client(std, seed), attack, insider)
        for seed in words.seeds
        for attack in words.attacks
        for insider in (True, False)
        for std in words.std
    ]


def worker(words: argparse.Namespace) -> None:
    """Claim and do what is not done, in order, until nothing is left or the time is up."""
    torch.backends.cudnn.benchmark = True
    work = Path(words.work)
    data = unpack(work / "data.npz")
    if words.device != "cpu":
        data = data.to(words.device)
    facts = {"data": data.name, "data_sha256": data.sha256}

    def measure(task: Client | Cell) -> dict[str, Any]:
        if isinstance(task, Cell):
            return attack_client(data, task, words, work) | facts
        return train_client(data, task, words, work) | facts

    def is_ready(task: Client | Cell) -> bool:
        return isinstance(task, Client) or weights(task.client, work).exists()

    do(claims(lambda: open_tasks(words, work), is_ready, words), measure, words)


def open_tasks(words: argparse.Namespace, work: Path) -> list[Client | Cell]:
    """Cells without a result whose client did not fail, after the clients that they need."""
    left = [cell for cell in cells(words) if not (words.out / f"{cell.slug}.json").exists()]
    left = [cell for cell in left if not (work / f"{cell.client.slug}.failed").exists()]
    needed = {cell.client for cell in left}
    missing = [client for client in clients(words) if client in needed and not weights(client, work).exists()]
    return [*missing, *left]


def run(words: argparse.Namespace) -> None:
    """Start the workers, end them when the time is up, print the table."""
    words.out.mkdir(parents=True, exist_ok=True)
    work = Path(words.work)
    work.mkdir(parents=True, exist_ok=True)
    pack(read(words.data), work / "data.npz")
    print(f"data read, {words.deadline - time.time():.0f} s left", flush=True)
    run_workers(__file__, words)
    rows = table(words, work)
    command_line = f"python benchmarks/ladder.py DATA {' '.join(sys.argv[2:])}"
    write(words.out / "table.json", {"command": command_line, "rows": rows, "environment": environment()})
    show(rows)


def table(words: argparse.Namespace, work: Path) -> list[dict[str, Any]]:
    """One row per noise and attack, pooled over seeds."""
    kinds: dict[tuple[float, str, bool], list[Cell]] = {}
    for cell in cells(words):
        kinds.setdefault((cell.client.std, cell.attack, cell.insider), []).append(cell)
    order = sorted(kinds, key=lambda kind: words.std.index(kind[0]))
    return [row(words, work, kinds[kind]) for kind in order]


def row(words: argparse.Namespace, work: Path, same: Sequence[Cell]) -> dict[str, Any]:
    """The cells of one configuration, pooled over seeds; intervals over seeds and victims where scores are at hand."""
    cell = same[0]
    facts = {"noise_std": cell.client.std, "attack": cell.attack, "insider": cell.insider}
    measured = [each for each in same if (words.out / f"{each.slug}.json").exists()]
    if not measured:
        return facts | {"seeds": []}
    results = [json.loads((words.out / f"{each.slug}.json").read_text()) for each in measured]
    homes = [words.out / f"{each.client.slug}.json" for each in measured]
    accuracies = [json.loads(home.read_text())["accuracy"]["victims"] for home in homes if home.exists()]
    means = {
        name: fmean(r["attack"][name]["mean"] for r in results) for name in ("mse", "psnr", "ssim", "lpips", "leak")
    }
    places = [work / each.client.slug / "attacks" for each in measured]
    scores = [file for place, each in zip(places, measured, strict=True) for file in place.glob(_pattern(each, words))]
    pooled = None
    if len(scores) == len(measured):
        tables = [torch.from_numpy(np.load(file)["score_mse"]) for file in scores]
        pooled = asdict(interval(torch.stack(tables)[:, None]))
    flags = sorted({flag["name"] for r in results for flag in r["attack"]["flags"]})
    return facts | {
        "seeds": [each.client.seed for each in measured],
        "accuracy": fmean(accuracies) if accuracies else None,
        **means,
        "mse_interval": pooled,
        "mse_span": {  # of the seeds' own intervals, which every cell has
            "low": min(r["attack"]["mse"]["low"] for r in results),
            "high": max(r["attack"]["mse"]["high"] for r in results),
        },
        "steps": max(r["attack"]["steps"] for r in results),
        "seconds": fmean(r["attack"]["seconds"] for r in results),
        "flags": flags,
    }


def _pattern(cell: Cell, words: argparse.Namespace) -> str:
    return f"{make_trial(cell, words).slug}-seed{cell.client.seed}.npz"


def show(rows: Sequence[dict[str, Any]]) -> None:
    """The table."""
    head = f"{'σ':>6} {'attack':>9} {'as':>9} {'seeds':>5} {'acc':>6} {'MSE':>8} {'95 % interval':>20}"
    print(f"{head} {'SSIM':>6} {'LPIPS':>6} {'leak':>6}")
    for each in rows:
        head = f"{each['noise_std']:>6g} {each['attack']:>9} {'insider' if each['insider'] else 'outsider':>9}"
        if not each["seeds"]:
            print(f"{head} {'not measured':>18}")
            continue
        span = each["mse_interval"] or each["mse_span"]
        mark = " " if each["mse_interval"] else "~"  # ~ from the seeds' own intervals
        text = f"[{span['low']:.5f}, {span['high']:.5f}]{mark}"
        accuracy_text = "–" if each["accuracy"] is None else f"{each['accuracy']:.1%}"
        numbers = f"{each['mse']:>8.5f} {text:>20} {each['ssim']:>6.3f} {each['lpips']:>6.3f} {each['leak']:>6.3f}"
        print(f"{head} {len(each['seeds']):>5} {accuracy_text:>6} {numbers}  {', '.join(each['flags'])}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--out", type=Path, default=Path("results/ladder"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--time-budget", type=float, default=480.0, help="seconds for everything")
    parser.add_argument("--std", type=float, nargs="+", default=[0.025, 0.1])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--steps", type=int, help="at most so many steps of a decoder; the suite's own by default")
    parser.add_argument("--victims", type=int, help="at most so many victims; all by default")
    launch(parser, run, worker, name="ladder")


if __name__ == "__main__":
    main()
