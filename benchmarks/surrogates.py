"""What the conditional-entropy surrogates cost: ratios, in one run, sides taken in turns.

    python benchmarks/surrogates.py --device cpu --clock cpu --out results/surrogates-speed-cpu.json
    python benchmarks/surrogates.py --device cuda --out results/surrogates-speed-cuda.json
    python benchmarks/surrogates.py --only memory --out results/surrogates-memory-cpu.json

    step     a training step with a surrogate (charge, fit and gauges included) over the same step without
    loop     charge, forward and backward, all classes at once against one class after another
    refit    K-means of 50,000 × 512 in 10 classes against scikit-learn, one class after another, at equal inertia
    memory   peak memory of a surrogate and of the step with it, and what it keeps; only when asked for

VGG11 cut after two convolutions, 8×8×8 sigmoid bottleneck (D = 512), σ = 0.1, B = 256. The cpu clock counts the seconds
one thread computes and is not moved by what else the machine does; the wall clock is for a machine of one's own.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measuring import publish
from surrogates_memory import memory_rows
from torch import Tensor
from torch.nn import functional as F

from splitveil.cli.runs import environment
from splitveil.mechanisms import Gaussian
from splitveil.mixtures import kmeans as cluster
from splitveil.networks import vgg11
from splitveil.randomness import SeededSource
from splitveil.regularizers import entropy
from splitveil.regularizers.base import Progress, Regularizer, Step
from splitveil.split import Bottleneck, cut
from splitveil.types import Sent

STD, BATCH, SHAPE = 0.1, 256, (3, 32, 32)
GOALS = {"plain": 1.10, "kmeans": 1.10, "gated_pooling": 1.10, "mixture_prior": 1.10, "slots": 1.35}
SHOWN = ("mixture", "correlated", "hybrid")
CLOCKS = (time.perf_counter, time.process_time)


class Trainer:
    """A bare training step, with or without a surrogate."""

    def __init__(self, regularizer: Regularizer | None, n_classes: int, device: torch.device, precision: str) -> None:
        torch.manual_seed(0)
        self.split = cut(
            vgg11(n_classes=n_classes, image_shape=SHAPE),
            after=vgg11.cut,
            bottleneck=Bottleneck(channels=8, activation="sigmoid"),
            mechanism=Gaussian(std=STD),
            example=torch.zeros(2, *SHAPE),
        ).to(device)
        modules = torch.nn.ModuleList([self.split.client, self.split.server])
        self.half = precision == "bf16"
        if self.half:
            modules.to(memory_format=torch.channels_last)
        self.sgd = torch.optim.SGD(modules.parameters(), lr=0.01, momentum=0.9)
        self.regularizer, self.n_classes, self.device = regularizer, n_classes, device
        self.x = torch.rand(BATCH, *SHAPE, device=device)
        self.y = torch.randint(n_classes, (BATCH,), device=device)
        self.n = 1
        self.seen: tuple[Tensor, Sent, Tensor] | None = None  # features of a batch, once asked for

    def __call__(self) -> None:
        """One step."""
        client, server = self.split.client, self.split.server
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            z = client.encode(self.x)
            z_sent = client.mechanism(z, source=SeededSource(0, self.n))
            logits = server(z_sent).float()
            loss = F.cross_entropy(logits, self.y)
        if self.regularizer is not None:
            loss = loss + 0.1 * self._penalty(z, z_sent, logits)
        self.sgd.zero_grad(set_to_none=True)
        loss.backward()
        self.sgd.step()
        self.n += 1

    def _penalty(self, z: Tensor, z_sent: Sent, logits: Tensor) -> Tensor:
        assert self.regularizer is not None
        progress = Progress(0, 0, self.n, 1, 0.01, 0.01, None)
        seen = Step(self.x, z.detach(), Sent(z_sent.detach()), self.y, logits.detach(), STD, self.n_classes, progress)
        self.regularizer.fit(seen)
        step = Step(self.x, z, z_sent, self.y, logits, STD, self.n_classes, progress)
        penalty: Tensor = self.regularizer(step).loss
        return penalty

    def charge(self) -> None:
        """Fit and charge the features of a batch, and nothing else of the step."""
        if self.seen is None:
            with torch.no_grad():
                z = self.split.client.encode(self.x)
            self.seen = z, Sent(z + STD * torch.randn_like(z)), torch.zeros(BATCH, self.n_classes, device=self.device)
        if self.regularizer is not None:
            z, z_sent, logits = self.seen
            self._penalty(z.requires_grad_(), z_sent, logits)

    def end_epoch(self) -> None:
        """Let a surrogate refit, so that its groups are in use."""
        if self.regularizer is not None:
            self.regularizer.end_epoch(Progress(0, 0, self.n, 1, 0.01, 0.01, None))


def in_turns(
    sides: dict[str, Callable[[], object]], device: torch.device, *, rounds: int, inner: int
) -> dict[str, float]:
    """Median seconds of one call of every side; the first of the rounds warms up."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, call in sides.items():
            start = _now(device)
            for _ in range(inner):
                call()
            if number:
                times[name].append((_now(device) - start) / inner)
    return {name: statistics.median(values) for name, values in times.items()}


def step_ratios(
    device: torch.device, precision: str, n_classes: int, rounds: int, names: list[str]
) -> list[dict[str, Any]]:
    """Every surrogate's step over the step without."""
    sides = {"none": Trainer(None, n_classes, device, precision)}
    for name in names:
        sides[name] = Trainer(getattr(entropy, name)(), n_classes, device, precision)
    for side in sides.values():
        for _ in range(1 if device.type == "cpu" else 20):
            side()
        side.end_epoch()
    seconds = in_turns(dict(sides), device, rounds=rounds, inner=1 if device.type == "cpu" else 32)
    return [
        {
            "surrogate": name,
            "n_classes": n_classes,
            "precision": precision,
            "ms_without": round(1e3 * seconds["none"], 3),
            "ms_with": round(1e3 * seconds[name], 3),
            "ratio": round(seconds[name] / seconds["none"], 4),
            "goal": GOALS.get(name),
        }
        for name in names
    ]


def loop_ratio(device: torch.device, rounds: int) -> dict[str, Any]:
    """K-means charge at C = 100, B = 512, D = 512, against one class after another."""
    generator = torch.Generator().manual_seed(0)
    z = torch.rand(512, 512, generator=generator).to(device).requires_grad_()
    y = torch.randint(100, (512,), generator=generator).to(device)
    surrogate = entropy.kmeans()
    progress = Progress(0, 0, 1, 1, 0.1, 0.1, None)
    step = Step(torch.zeros(512, 1, 1, 1), z, Sent(z), y, torch.zeros(512, 100), STD, 100, progress)
    surrogate.fit(step)
    surrogate.end_epoch(progress)
    center = surrogate.grouping.center

    def ours() -> Tensor:
        z.grad = None
        loss: Tensor = surrogate(step).loss
        loss.backward()
        return loss

    def loop() -> Tensor:
        z.grad = None
        loss = class_by_class(z, y, center)
        loss.backward()
        return loss

    ours_loss, ours_slope = float(ours().detach()), z.grad.clone()
    loop_loss, loop_slope = float(loop().detach()), z.grad.clone()
    seconds = in_turns({"ours": ours, "loop": loop}, device, rounds=rounds, inner=3)
    return {
        "what": "kmeans charge, forward and backward, C = 100, B = 512, D = 512",
        "ms_ours": round(1e3 * seconds["ours"], 3),
        "ms_loop": round(1e3 * seconds["loop"], 3),
        "times_faster": round(seconds["loop"] / seconds["ours"], 2),
        "goal": 10,
        "difference": {"value": abs(ours_loss - loop_loss), "slope": float((ours_slope - loop_slope).abs().max())},
    }


def class_by_class(z: Tensor, y: Tensor, center: Tensor) -> Tensor:
    """The same charge as one would write it first: a loop over classes, and over the groups of each."""
    total = z.new_zeros(())
    for c in range(len(center)):
        mine = z[y == c]
        if len(mine) < 2:
            continue
        nearest = torch.cdist(mine.detach(), center[c]).argmin(1)
        for k in range(center.shape[1]):
            group = mine[nearest == k]
            if len(group):
                share = len(group) / len(mine)
                nats = 0.5 * torch.log1p((group - center[c, k]).square().mean(0) / STD**2).mean()
                total = total + len(mine) / len(z) * share * (nats - torch.tensor(share).log() / z.shape[1])
    return total


def refit_ratio(rounds: int) -> list[dict[str, Any]]:
    """K-means against scikit-learn on two kinds of features: one cloud a class, and several a class. Both are handed
    all features and their labels, as a refit is."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    rows = []
    for kind in ("one cloud a class", "eight clouds a class"):
        points, labels = features(kind)
        found: dict[str, float] = {}

        def theirs(points: Tensor = points, labels: Tensor = labels, found: dict[str, float] = found) -> None:
            with threadpool_limits(torch.get_num_threads()):  # as many as ours
                fits = [KMeans(5, n_init=1, random_state=0).fit(points[labels == c].numpy()) for c in range(10)]
            found["theirs"] = sum(float(fit.inertia_) for fit in fits)

        def ours(points: Tensor = points, labels: Tensor = labels, found: dict[str, float] = found) -> None:
            rng = torch.Generator().manual_seed(0)
            result = cluster(points, labels, n_classes=10, n_groups=5, generator=rng, restarts=1)  # as theirs
            found["ours"] = float(result.inertia.sum())

        seconds = in_turns({"ours": ours, "theirs": theirs}, torch.device("cpu"), rounds=rounds, inner=1)
        rows.append(
            {
                "features": kind,
                "s_ours": round(seconds["ours"], 3),
                "s_scikit_learn": round(seconds["theirs"], 3),
                "times_faster": round(seconds["theirs"] / seconds["ours"], 2),
                "inertia_over_theirs": round(found["ours"] / found["theirs"], 6),
                "goal": 5,
            }
        )
    return rows


def features(kind: str) -> tuple[Tensor, Tensor]:
    """50,000 × 512 features of 10 classes with correlated dimensions."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (50_000,), generator=rng)
    n_clouds = 1 if kind.startswith("one") else 8
    cloud = torch.randint(n_clouds, (50_000,), generator=rng)
    center = 0.35 * torch.randn(10, n_clouds, 512, generator=rng)
    mixing = torch.randn(512, 512, generator=rng) * torch.exp(-torch.arange(512) / 60)[:, None] / 10
    points = center[labels, cloud] + torch.randn(50_000, 512, generator=rng) @ mixing
    return points + 0.2 * torch.randn(50_000, 512, generator=rng), labels


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return CLOCKS[torch.get_num_threads() == 1 and device.type == "cpu"]()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--names", nargs="*", default=[*GOALS, *SHOWN])
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--only", choices=["step", "loop", "refit", "memory"])
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    device = torch.device(words.device)
    if device.type == "cpu":
        torch.set_num_threads(1 if words.clock == "cpu" or words.only == "memory" else 2)
    command = f"python benchmarks/surrogates.py --device {words.device} --clock {words.clock}"
    result: dict[str, Any] = {"command": command, "clock": words.clock}
    if words.only in (None, "step"):
        precisions = ["float32", "bf16"] if device.type == "cuda" else ["float32"]
        result["step"] = [
            row for p in precisions for c in (10, 100) for row in step_ratios(device, p, c, words.rounds, words.names)
        ]
    if words.only in (None, "loop"):
        result["loop"] = loop_ratio(device, words.rounds)
    if words.only in (None, "refit") and device.type == "cpu":
        result["refit"] = refit_ratio(3)
    if words.only == "memory":
        result["command"] = f"python benchmarks/surrogates.py --device {words.device} --only memory"
        result["memory"] = memory_rows(lambda r, c: Trainer(r, c, device, "float32"), device)
    result["environment"] = environment()
    publish(result, words.out)


if __name__ == "__main__":
    main()
