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
import math
import statistics
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import multiprocessing as mp

from splitveil.attacks.decoder import DecoderAttack
from splitveil.attacks.knowledge import grant
from splitveil.attacks.oracle import ClientOracle
from splitveil.attacks.pairs import QueriedPairs
from splitveil.attacks.threat import Box, Threat
from splitveil.data import Augment, ImageSet, Part, read
from splitveil.fitting import Plan
from splitveil.mechanisms import Gaussian
from splitveil.metrics import interval, mse, ssim
from splitveil.mixtures import Mixture, fit_mixture
from splitveil.networks import small_cnn, vgg11
from splitveil.randomness import SeededSource
from splitveil.regularizers import entropy
from splitveil.regularizers.entropy.information import leak_nats
from splitveil.split import Bottleneck, Normalize, Split, cut
from splitveil.training import Recipe, Term, Weight, accuracy, train

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
SIZES = (1, 2, 4, 8)  # groups of the mixture that bounds


@dataclass(frozen=True)
class Cell:
    """One point of the frontier."""

    name: str  # a surrogate, or "noise"
    weight: float
    std: float
    seed: int

    @property
    def file(self) -> str:
        """The name of the file with its numbers."""
        return f"{self.name}-w{self.weight:g}-std{self.std:g}-seed{self.seed}.json"


def cells(seeds: int) -> list[Cell]:
    """All cells, the most telling first."""
    order = []
    for seed in range(seeds):
        order += [(0, i, seed, Cell("noise", 0.0, std, seed)) for i, std in enumerate(NOISE)]
        order += [(j, i, seed, Cell(n, w, 0.1, seed)) for j, w in enumerate(WEIGHTS) for i, n in enumerate(HONEST)]
        order += [(j, 5, seed, Cell(n, w, 0.1, seed)) for j, w in enumerate(WEIGHTS[:2]) for n in LITERAL]
    return [cell for *_, cell in sorted(order, key=lambda entry: (entry[0], entry[1] > 7, entry[2], entry[1]))]


@dataclass(frozen=True)
class Budget:
    """How long networks are fitted."""

    epochs: int
    attack_steps: int
    batch: int = 512
    network: str = "vgg11"


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
        **_bits(split, data, cell.std),
        "gauges": {k: v for k, v in history[-1].items() if k not in ("seconds", "epoch")},
        "seconds": {"training": round(trained, 1), "all": round(time.monotonic() - start, 1)},
        "environment": {"device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu"},
    }


def _train(
    cell: Cell, data: ImageSet, budget: Budget, device: torch.device
) -> tuple[Split, tuple[dict[str, Any], ...]]:
    torch.manual_seed(cell.seed)
    network = {"vgg11": vgg11, "small-cnn": small_cnn}[budget.network]
    split = cut(
        network(n_classes=data.n_classes, image_shape=data.image_shape),
        after=network.cut,
        bottleneck=Bottleneck(channels=8, activation="sigmoid"),
        mechanism=Gaussian(std=cell.std),
        normalize=Normalize(mean=(0.5,) * data.image_shape[0], std=(0.25,) * data.image_shape[0]),
        example=torch.zeros(2, *data.image_shape),
    )
    recipe = Recipe(
        epochs=budget.epochs,
        batch_size=budget.batch,
        lr=0.1 if budget.network == "vgg11" else 0.05,
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
            terms = [Term(cell.name, getattr(entropy, cell.name)(), Weight(cell.weight, warmup_epochs=2))]
    trained = train(split, data, recipe, regularizers=terms, device=str(device))
    return trained.split, trained.history


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
    inverter = DecoderAttack("residual", plan=plan).fit(known, seed=cell.seed)
    pairs = QueriedPairs(data.victims, oracle).first(len(data.victims), source=SeededSource(0, "victims"))
    x_hat = inverter(pairs.seen)
    error = mse(pairs.x, x_hat)
    return {
        "mse": asdict(interval(error)),
        "ssim": float(ssim(pairs.x, x_hat).mean()),
        "mean_image_mse": float((pairs.x - pairs.x.mean(0)).square().mean()),
        "attack": asdict(inverter.health),
    }


@torch.no_grad()
def _features(split: Split, part: Part) -> Tensor:
    chunks = [split.client.encode(part.images(slice(i, i + 1000))) for i in range(0, len(part), 1000)]
    return torch.cat([z.flatten(1) for z in chunks]).float()


@torch.no_grad()
def _bits(split: Split, data: ImageSet, std: float) -> dict[str, Any]:
    """The bound and its interval, in bits."""
    split.eval()
    z, y = _features(split, data.train), data.train.labels
    rng = torch.Generator().manual_seed(0)
    noisy = z + std * torch.randn(z.shape, generator=rng).to(z)
    found = {
        k: _denoised(
            fit_mixture(
                noisy, y, n_classes=data.n_classes, n_groups=k, generator=rng, floor=std**2, max_rounds=30
            ).mixture,
            std,
        )
        for k in SIZES
    }
    chosen = min(found, key=lambda k: float(_leak(split, data.auxiliary, found[k], std).mean()))
    each = _leak(split, data.victims, found[chosen], std) / math.log(2) + math.log2(data.n_classes)
    return {"bits": asdict(interval(each)), "bits_groups": chosen}


def _denoised(mixture: Mixture, std: float) -> Mixture:
    """Variances without the noise that `leak_nats` adds again."""
    return Mixture(mixture.log_weight, mixture.mean, (mixture.var - std**2).clamp_min(0))


def _leak(split: Split, part: Part, mixture: Mixture, std: float) -> Tensor:
    z = _features(split, part)
    noise = torch.randn(z.shape, generator=torch.Generator().manual_seed(1)).to(z)
    return leak_nats(z, part.labels, mixture, noise, noise_var=std**2)


def work(path: str, queue: Any, budget: Budget, deadline: float, device: str, folder: Path) -> None:
    """Take cells until none is left or time is nearly up."""
    torch.set_num_threads(1)
    where = torch.device(device)
    data = read(path).to(where)
    longest = 0.0
    while time.time() + 1.2 * longest < deadline:
        try:
            cell = queue.get_nowait()
        except Exception:  # the queue is empty: all cells are taken
            return
        start = time.time()
        result = measure(cell, data, budget, where)
        result["command"] = "python benchmarks/frontier.py run DATA"
        part = folder / f"{cell.file}.part"
        part.write_text(json.dumps(result, indent=1) + "\n")
        part.rename(folder / cell.file)
        longest = max(longest, time.time() - start)
        bits, error = result["bits"]["mean"], result["mse"]["mean"]
        print(f"{cell.file} acc {result['accuracy']:.4f} mse {error:.4f} bits {bits:.0f} {longest:.0f} s", flush=True)


def run(path: str, folder: Path, *, seeds: int, budget: Budget, workers: int, seconds: float, device: str) -> None:
    """Measure the cells that have no file yet."""
    deadline = time.time() + seconds
    folder.mkdir(parents=True, exist_ok=True)
    context = mp.get_context("spawn")
    queue = context.Queue()
    for cell in cells(seeds):
        if not (folder / cell.file).exists():
            queue.put(cell)
    time.sleep(1.0)  # the queue fills through a thread
    team = [context.Process(target=work, args=(path, queue, budget, deadline, device, folder)) for _ in range(workers)]
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
    groups: dict[tuple[str, float, float], list[dict[str, Any]]] = {}
    for file in sorted(folder.glob("*.json")):
        result = json.loads(file.read_text())
        cell = result["cell"]
        groups.setdefault((cell["name"], cell["weight"], cell["std"]), []).append(result)

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


def table(folder: Path) -> str:
    """One line a surrogate and weight, as Markdown."""
    found = rows(folder)
    noise = [row for row in found if row.name == "noise"]
    lines = [
        "| surrogate | weight | σ | seeds | accuracy | attack MSE | SSIM | bits ≤ | MSE / noise at equal accuracy |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in found:
        over = r.over_noise(noise)
        last = "" if r.name == "noise" else "outside" if over is None else f"{over:.2f}"
        name = r.name.replace("_", "-")
        numbers = f"{100 * r.accuracy:.1f} % | {r.mse:.4f} | {r.ssim:.3f} | {r.bits:.0f} | {last}"
        lines.append(f"| {name} | {r.weight:g} | {r.std:g} | {r.n_seeds} | {numbers} |")
    return "\n".join(lines)


def plot(folder: Path, path: Path) -> None:
    """Accuracy against attack MSE, and against bits."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    found = rows(folder)
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), constrained_layout=True)
    for i, name in enumerate(("noise", *HONEST, *LITERAL)):
        mine = sorted((r for r in found if r.name == name), key=lambda r: r.accuracy)
        if not mine:
            continue
        style = {"color": "black", "lw": 2} if name == "noise" else {"lw": 1, "ls": "--" if name in LITERAL else "-"}
        for axis, values in ((axes[0], [r.mse for r in mine]), (axes[1], [r.bits for r in mine])):
            axis.plot([100 * r.accuracy for r in mine], values, marker="osv^D<>pPX*hdH"[i], ms=5, label=name, **style)
    axes[0].set(xlabel="accuracy on victims, %", ylabel="attack MSE (higher is more private)")
    axes[1].set(xlabel="accuracy on victims, %", ylabel="bits about x at most (lower is more private)")
    axes[0].legend(fontsize=7)
    figure.savefig(path, dpi=110)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["run", "table", "plot"])
    parser.add_argument("data", nargs="?")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--attack-steps", type=int, default=2000)
    parser.add_argument("--time-budget", type=float, default=540.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--network", choices=["vgg11", "small-cnn"], default="vgg11")
    parser.add_argument("--folder", type=Path, default=RESULTS)
    words = parser.parse_args()
    if words.verb == "run":
        budget = Budget(words.epochs, words.attack_steps, 512 if words.network == "vgg11" else 128, words.network)
        run(
            words.data,
            words.folder,
            seeds=words.seeds,
            budget=budget,
            workers=words.workers,
            seconds=words.time_budget,
            device=words.device,
        )
    elif words.verb == "table":
        print(table(words.folder))
    else:
        plot(words.folder, Path("docs") / f"{words.folder.name}.png")


if __name__ == "__main__":
    main()
