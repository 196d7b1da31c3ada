"""Privacy and accuracy of the conditional-entropy surrogates, cell by cell: CIFAR-10, one GPU.

    python benchmarks/frontier.py run DATA --workers 8 --time-budget 540
    python benchmarks/frontier.py run fashion --network small-cnn --device cpu --workers 2 --folder results/small
    python benchmarks/frontier.py table
    python benchmarks/frontier.py plot

A cell is one surrogate at one weight, one noise level and one seed: a network cut after two convolutions, its wire a
sigmoid bottleneck of 8 channels, is trained on the train role, then measured on victims nobody has seen:

    accuracy    of the deployed pair, noise included
    mse, ssim   of a residual decoder trained by an insider (private and auxiliary images, fresh noise at each draw)
    bits        L of a class-conditional mixture + log2 C, an upper bound of I(x; z_sent): the mixture is fitted to the
                train role, its size is chosen on the auxiliary one, and the number is read on victims

Cells that have a file are left alone, the most telling ones come first.
"""

import argparse
import itertools
import json
import statistics
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

import torch
from frontier_cells import Budget, Cell, measure
from torch import multiprocessing as mp

from splitveil.data import read

RESULTS = Path("results/frontier")
HONEST = (
    "plain",
    "kmeans",
    "gated_pooling",
    "slots",
    "mixture_prior",
    "unlabeled",
    "mixture",
    "correlated",
    "hybrid",
    "staged",
)
LITERAL = ("notes_gated_pooling", "notes_slots", "published")
WEIGHTS = (0.15, 0.4, 0.05)  # of nats a dimension; the most telling first
NOISE = (0.1, 0.2, 0.3, 0.14, 0.4)
COMPARED = ("noise", "plain", "kmeans", "gated_pooling", "slots")  # where finer grouping might pay


def cells(seeds: int) -> list[Cell]:
    """All cells of the frontier, the most telling first."""
    order = []
    for seed in range(seeds):
        order += [(0, i, seed, Cell("noise", 0.0, std, seed)) for i, std in enumerate(NOISE)]
        order += [(j, i, seed, Cell(n, w, 0.1, seed)) for j, w in enumerate(WEIGHTS) for i, n in enumerate(HONEST)]
        order += [(j, 5, seed, Cell(n, w, 0.1, seed)) for j, w in enumerate(WEIGHTS[:2]) for n in LITERAL]
    return [cell for *_, cell in sorted(order, key=lambda entry: (entry[0], entry[1] > 7, entry[2], entry[1]))]


def compared(seeds: int, weight: float = WEIGHTS[0], **where: Any) -> list[Cell]:
    """The groupings to compare in one other place, with noise alone."""
    pairs = itertools.product(range(seeds), COMPARED)
    return [Cell(name, weight if name != "noise" else 0.0, 0.1, seed, **where) for seed, name in pairs]


def batch_cells(seeds: int) -> list[Cell]:
    """Small and large batches: a class has three members in a batch of 32, a hundred in one of 1,024.

    At the strongest weight of the frontier, where groupings may differ most; its own size last.
    """
    return [cell for batch in (32, 1024, 128, 512) for cell in compared(seeds, max(WEIGHTS), batch=batch)]


def cut_cells(seeds: int) -> list[Cell]:
    """Deeper cuts of VGG11: after four and after six convolutions."""
    return [cell for place in ("features.pool4", "features.pool6") for cell in compared(seeds, after=place)]


def face_cells(seeds: int) -> list[Cell]:
    """Classes are people: a pack of faces as DATA."""
    return compared(seeds, batch=128)


STUDIES = {"weights": cells, "batches": batch_cells, "cuts": cut_cells, "faces": face_cells}


def work(path: str, queue: Any, budget: Budget, deadline: float, device: str, folder: Path, command: str) -> None:
    """Take cells until none is left or time is nearly up."""
    torch.set_num_threads(1)
    where = torch.device(device)
    data = read(path).to(where)
    longest = 0.0
    while time.time() + 1.2 * longest < deadline:
        try:
            cell = queue.get_nowait()
        except Empty:
            return
        start = time.time()
        try:
            result = measure(cell, data, budget, where)
        except Exception:  # one cell that fails does not end the table
            print(f"{cell.file} FAILED\n{traceback.format_exc()}", flush=True)
            continue
        result["command"] = command
        part = folder / f"{cell.file}.part"
        part.write_text(json.dumps(result, indent=1) + "\n")
        part.rename(folder / cell.file)
        longest = max(longest, time.time() - start)
        bits, error = result["bits"]["mean"], result["mse"]["mean"]
        print(f"{cell.file} acc {result['accuracy']:.4f} mse {error:.4f} bits {bits:.0f} {longest:.0f} s", flush=True)


def run(
    path: str,
    wanted: list[Cell],
    folder: Path,
    *,
    budget: Budget,
    workers: int,
    seconds: float,
    device: str,
    command: str,
) -> None:
    """Measure the wanted cells that have no file yet."""
    deadline = time.time() + seconds
    folder.mkdir(parents=True, exist_ok=True)
    context = mp.get_context("spawn")
    queue = context.Queue()
    for cell in wanted:
        if not (folder / cell.file).exists():
            queue.put(cell)
    time.sleep(1.0)  # the queue fills through a thread
    team = [
        context.Process(target=work, args=(path, queue, budget, deadline, device, folder, command))
        for _ in range(workers)
    ]
    for member in team:
        member.start()
    for member in team:
        member.join()


@dataclass(frozen=True)
class Row:
    """Means over seeds."""

    name: str
    weight: float
    std: float
    batch: int
    cut: str  # "": the network's own place
    n_seeds: int
    accuracy: float
    mse: float
    ssim: float
    bits: float

    def over_noise(self, noise: list["Row"]) -> float | None:
        """MSE over that of noise alone at the same accuracy, by linear interpolation; None outside its range."""
        known = sorted((n.accuracy, n.mse) for n in noise)
        for (low, at_low), (high, at_high) in itertools.pairwise(known):
            if low <= self.accuracy <= high:
                share = (self.accuracy - low) / (high - low) if high > low else 0.0
                return self.mse / (at_low + share * (at_high - at_low))
        return None


def rows(folder: Path) -> list[Row]:
    """All cells that are there, averaged over seeds."""
    groups: dict[tuple[str, float, float, int, str], list[dict[str, Any]]] = {}
    for file in sorted(folder.glob("*.json")):
        result = json.loads(file.read_text())
        cell = result["cell"]
        where = (cell["batch"], cell["after"].rpartition(".")[2])
        groups.setdefault((cell["name"], cell["weight"], cell["std"], *where), []).append(result)

    def mean(found: list[dict[str, Any]], *keys: str) -> float:
        values = []
        for result in found:
            value: Any = result
            for key in keys:
                value = value[key]
            values.append(float(value))
        return statistics.mean(values)

    return [
        Row(*key, len(v), mean(v, "accuracy"), mean(v, "mse", "mean"), mean(v, "ssim"), mean(v, "bits", "mean"))
        for key, v in sorted(groups.items())
    ]


def table(folder: Path, wanted: list[Cell]) -> str:
    """One line a surrogate and weight, as Markdown, and what of `wanted` is not measured."""
    found = rows(folder)
    lines = [
        "| surrogate | weight | σ | batch | cut | seeds | accuracy | attack MSE | SSIM | bits ≤ "
        "| MSE / noise at equal accuracy |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in found:
        over = r.over_noise([n for n in found if n.name == "noise" and (n.batch, n.cut) == (r.batch, r.cut)])
        last = "" if r.name == "noise" else "outside" if over is None else f"{over:.2f}"
        name = r.name.replace("_", "-")
        numbers = f"{100 * r.accuracy:.1f} % | {r.mse:.4f} | {r.ssim:.3f} | {r.bits:.0f} | {last}"
        lines.append(f"| {name} | {r.weight:g} | {r.std:g} | {r.batch} | {r.cut} | {r.n_seeds} | {numbers} |")
    missing = [cell.file.removesuffix(".json") for cell in wanted if not (folder / cell.file).exists()]
    return "\n".join([*lines, *(["", f"Not measured: {', '.join(missing)}"] if missing else [])])


def plot(folder: Path, path: Path) -> None:
    """Accuracy against attack MSE, and against bits."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    found = rows(folder)
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.5), constrained_layout=True)
    for i, name in enumerate(("noise", *HONEST, *LITERAL)):
        mine = sorted((r for r in found if r.name == name), key=lambda r: r.accuracy)
        if not mine:
            continue
        style = {"color": "black", "lw": 2} if name == "noise" else {"lw": 1, "ls": "--" if name in LITERAL else "-"}
        style |= {"marker": "osv^D<>pPX*hdH"[i], "ms": 5, "label": name.replace("_", "-")}
        for axis, values in ((axes[0], [r.mse for r in mine]), (axes[1], [r.bits for r in mine])):
            axis.plot([100 * r.accuracy for r in mine], values, **style)
    axes[0].set(xlabel="accuracy on victims, %", ylabel="attack MSE (higher is more private)")
    axes[1].set(xlabel="accuracy on victims, %", ylabel="bits about x at most (lower is more private)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    figure.savefig(path, dpi=90)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["run", "table", "plot"])
    parser.add_argument("data", nargs="?")
    parser.add_argument("--study", choices=list(STUDIES), default="weights")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--attack-steps", type=int, default=2000)
    parser.add_argument("--time-budget", type=float, default=540.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--network", choices=["vgg11", "small-cnn"], default="vgg11")
    parser.add_argument("--rung", choices=["conv", "residual", "unet"], default="residual", help="decoder that attacks")
    parser.add_argument("--folder", type=Path, help="results/frontier, or results/frontier-STUDY, by default")
    words = parser.parse_args()
    folder = words.folder or RESULTS.with_name("frontier" if words.study == "weights" else f"frontier-{words.study}")
    if words.verb == "run":
        given = f"--study {words.study} --epochs {words.epochs} --attack-steps {words.attack_steps} --rung {words.rung}"
        given += f" --network {words.network}"
        run(
            words.data,
            STUDIES[words.study](words.seeds),
            folder,
            budget=Budget(words.epochs, words.attack_steps, words.network, words.rung),
            workers=words.workers,
            seconds=words.time_budget,
            device=words.device,
            command=f"python benchmarks/frontier.py run DATA {given} --workers {words.workers}",
        )
    elif words.verb == "table":
        print(table(folder, STUDIES[words.study](words.seeds)))
    else:
        plot(folder, Path("docs") / f"{folder.name}.png")


if __name__ == "__main__":
    main()
