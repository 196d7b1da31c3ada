"""Decoder training against a bare PyTorch loop of the same network: a ratio of images/s, in one run, chunks in turns.

    python benchmarks/attacks.py --device cpu  --out results/attacks-cpu.json
    python benchmarks/attacks.py --device cuda --out results/attacks-cuda.json
    python benchmarks/attacks.py --device cuda --optimization --out results/optimization-cuda.json

Our side is the attack as suites run it: fresh views, fresh noise, averaged weights, and a scored check at the end of
each chunk. The bare side draws the same batches by hand, with the same client, network, optimizer and precision, and
does neither averaging nor checks. Exit code 1 below 0.95.

With --optimization, instead: the search for 64 victims' images in one batch against the same search one victim after
another, in victims/s, in turns. Exit code 1 below 20 on a GPU; a CPU, which computes one image at a time anyway, has no
floor.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from measuring import now, publish
from torch.nn import functional as F

from splitveil.attacks import DecoderAttack, OptimizationAttack, Seen, Threat, grant, oracle_of
from splitveil.cli.runs import environment
from splitveil.data import Part
from splitveil.fitting import Check, Plan
from splitveil.mechanisms import Gaussian
from splitveil.networks import small_cnn, vgg11
from splitveil.networks.decoders import Decoder
from splitveil.randomness import SeededSource
from splitveil.split import Bottleneck, Client, cut

FLOOR = 0.95
BATCHED_FLOOR = {"cuda": 20.0, "cpu": 0.0}
N_TOGETHER, N_ALONE = 64, 4  # victims in one batch; victims timed one after another
SEARCH_STEPS = {"cuda": 200, "cpu": 20}
STD = 0.1
SHIFT = 8  # the views' share of a side, as the attack draws them


@dataclass(frozen=True)
class Setting:
    """What is trained on what."""

    rung: str
    shape: tuple[int, int, int]
    batch: int
    steps: int  # of a chunk
    n_images: int


SETTINGS = {
    "cpu": (Setting("conv", (1, 28, 28), 64, 100, 5000),),
    "cuda": (Setting("residual", (3, 32, 32), 512, 100, 5000), Setting("unet", (3, 32, 32), 512, 100, 5000)),
}


def make_client(shape: tuple[int, int, int], device: torch.device) -> Client:
    """The client that the suite's default cut gives, untrained."""
    torch.manual_seed(0)
    reference = vgg11 if shape[1] >= 32 else small_cnn
    network = reference(n_classes=10, image_shape=shape)
    bottleneck = Bottleneck(channels=8, activation="sigmoid")
    example = torch.zeros(2, *shape)
    split = cut(network, after=reference.cut, bottleneck=bottleneck, mechanism=Gaussian(std=STD), example=example)
    return split.client.to(device).eval()


def make_part(n: int, shape: tuple[int, int, int], device: torch.device, seed: int) -> Part:
    """Random pixels: speed does not depend on what they show."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (n, *shape), generator=generator).to(torch.uint8)
    return Part(pixels, torch.zeros(n, dtype=torch.int64)).to(device)


def bare_chunk(client: Client, part: Part, setting: Setting, device: torch.device) -> Callable[[], None]:
    """The same training written out by hand."""
    side = setting.shape[1]
    z = client.encode(part.images(slice(2)))
    network = Decoder(setting.rung, feature_shape=tuple(z.shape[1:]), image_shape=setting.shape)  # type: ignore[arg-type]
    network.to(device).to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0, fused=True)

    def chunk() -> None:
        for _ in range(setting.steps):
            index = torch.randint(len(part), (setting.batch,), device=device)
            x = view_by_hand(part.images(index), side // SHIFT)
            with torch.no_grad():
                z = client.encode(x)
                z_sent = z + STD * torch.randn_like(z)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = F.mse_loss(network(z_sent), x)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

    return chunk


def view_by_hand(x: torch.Tensor, most: int) -> torch.Tensor:
    """Shift with reflected borders and mirror, in one gather with the channels last, as the attack does it."""
    n, _, h, w = x.shape
    rows = torch.randint(-most, most + 1, (n, 1), device=x.device) + torch.arange(h, device=x.device)
    columns = torch.arange(w, device=x.device)
    columns = torch.where(torch.rand(n, 1, device=x.device) < 0.5, w - 1 - columns, columns)
    columns = columns + torch.randint(-most, most + 1, (n, 1), device=x.device)
    rows = h - 1 - (h - 1 - rows.abs()).abs()
    columns = w - 1 - (w - 1 - columns.abs()).abs()
    each = torch.arange(n, device=x.device)[:, None, None]
    return x.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def compare(setting: Setting, *, device: torch.device, rounds: int) -> dict[str, Any]:
    """Median images/s of a chunk on both sides: our loop's own watcher runs a bare chunk after each of ours."""
    client = make_client(setting.shape, device)
    part = make_part(setting.n_images, setting.shape, device, 0)
    selection = make_part(500, setting.shape, device, 1)
    chunk = bare_chunk(client, part, setting, device)
    chunk()
    times: dict[str, list[float]] = {"ours": [], "bare": []}
    marks = [now(device)]

    def after_each(check: Check) -> None:
        ended = now(device)
        chunk()
        marks.append(now(device))
        if check.step > setting.steps:  # the first round warms up
            times["ours"].append(ended - marks[-2])
            times["bare"].append(marks[-1] - ended)

    plan = Plan(steps=(rounds + 1) * setting.steps, check_every=setting.steps, patience=10**6)
    attack = DecoderAttack(setting.rung, batch=setting.batch, plan=plan)  # type: ignore[arg-type]
    known = grant(Threat(), oracle=oracle_of(client), auxiliary=part, selection=selection)
    attack.fit(known, seed=0, watch=after_each)
    speed = {name: setting.batch * setting.steps / statistics.median(values) for name, values in times.items()}
    return {
        "decoder": setting.rung,
        "image": "×".join(map(str, setting.shape)),
        "batch": setting.batch,
        "steps_per_check": setting.steps,
        "rounds": len(times["ours"]),
        "images_per_second": {name: round(value, 1) for name, value in speed.items()},
        "ratio": round(statistics.median(b / a for a, b in zip(times["ours"], times["bare"], strict=True)), 4),
    }


def compare_batched(prior: str, *, device: torch.device, rounds: int, steps: int | None) -> dict[str, Any]:
    """Victims/s of a search in one batch, and one after another."""
    shape = SETTINGS[device.type][0].shape
    client = make_client(shape, device)
    part, selection = make_part(256, shape, device, 0), make_part(64, shape, device, 1)
    n_steps = steps or SEARCH_STEPS[device.type]
    # From the mean image on: from least squares a search may find it best to take no step, and nothing would be timed.
    attack = OptimizationAttack(prior=prior, steps=n_steps, n_tuned=4, start="mean")  # type: ignore[arg-type]
    inverter = attack.fit(grant(Threat(), oracle=oracle_of(client), auxiliary=part, selection=selection), seed=0)
    x = make_part(N_TOGETHER, shape, device, 2).images()
    z_sent = oracle_of(client).release(x, source=SeededSource(0, "victims"))

    def seconds(n: int, size: int) -> float:
        began = now(device)
        for i in range(0, n, size):
            inverter(Seen(z_sent[:, i : i + size]))
        return (now(device) - began) / n

    seconds(N_TOGETHER, N_TOGETHER), seconds(1, 1)  # warm up
    times = [(seconds(N_TOGETHER, N_TOGETHER), seconds(N_ALONE, 1)) for _ in range(rounds)]
    together, alone = (statistics.median(side) for side in zip(*times, strict=True))
    return {
        "attack": attack.name,
        "image": "×".join(map(str, shape)),
        "steps": inverter.health.steps,
        "rounds": rounds,
        "victims_per_second": {"batch of 64": round(1 / together, 2), "one at a time": round(1 / alone, 3)},
        "ratio": round(statistics.median(b / a for a, b in times), 2),
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, help="steps of a chunk; the suites' own by default")
    parser.add_argument("--threads", type=int, help="CPU threads; torch's own choice by default")
    parser.add_argument("--optimization", action="store_true", help="time a batched search in place of training")
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    if words.threads:
        torch.set_num_threads(words.threads)
    device = torch.device(words.device)
    rows, floor = (searches if words.optimization else trainings)(words, device)
    threads = torch.get_num_threads()
    command = f"python benchmarks/attacks.py --device {words.device} --rounds {words.rounds} --threads {threads}"
    command += " --optimization" * words.optimization
    result = {"command": command, "floor": floor, "threads": threads, "rows": rows}
    publish(result | {"environment": environment()}, words.out, is_shown=False)
    sys.exit(min(row["ratio"] for row in rows) < floor)


def trainings(words: argparse.Namespace, device: torch.device) -> tuple[list[dict[str, Any]], float]:
    """Every decoder against its bare loop."""
    settings = [replace(s, steps=words.steps) if words.steps else s for s in SETTINGS[device.type]]
    rows = [compare(setting, device=device, rounds=words.rounds) for setting in settings]
    for row in rows:
        ours, bare = row["images_per_second"]["ours"], row["images_per_second"]["bare"]
        print(f"{row['decoder']:>9}  {ours:>10,.0f} of {bare:>10,.0f} images/s  ratio {row['ratio']:.3f}")
    return rows, FLOOR


def searches(words: argparse.Namespace, device: torch.device) -> tuple[list[dict[str, Any]], float]:
    """Every kind of search, batched against one at a time."""
    priors = ("tv", "gaussian", "deep-image-prior")
    rows = [compare_batched(prior, device=device, rounds=words.rounds, steps=words.steps) for prior in priors]
    for row in rows:
        together, alone = row["victims_per_second"].values()
        print(f"{row['attack']:>24}  {together:>9,.1f} against {alone:>7,.2f} victims/s  ratio {row['ratio']:.1f}")
    return rows, BATCHED_FLOOR[device.type]


if __name__ == "__main__":
    main()
