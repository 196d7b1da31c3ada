"""What our training loop costs over a bare PyTorch loop of the same step: a ratio, in one run, chunks interleaved.

    python benchmarks/training_overhead.py --device cpu  --out results/training-overhead-cpu.json
    python benchmarks/training_overhead.py --device cuda --out results/training-overhead-cuda.json

Both sides take the same uint8 images from the same device, crop, flip, add the same noise and step the same SGD. Ours
also keeps its gauges and looks at the loss every 50 steps, which waits for the device.
"""

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measuring import now, publish
from torch import nn
from torch.nn import functional as F

from splitveil.cli.runs import environment
from splitveil.data import Augment, ImageSet, Part
from splitveil.mechanisms import Gaussian
from splitveil.networks import small_cnn, vgg11
from splitveil.split import Bottleneck, Split, cut
from splitveil.training import Recipe, Silent
from splitveil.training.course import Course
from splitveil.training.device import open_place
from splitveil.training.loop import _Run
from splitveil.training.watch import StopWhen

STD = 0.1


def make_split(network: str, shape: tuple[int, int, int], device: torch.device) -> Split:
    """A fresh cut network."""
    torch.manual_seed(0)
    reference = {"vgg11": vgg11, "small-cnn": small_cnn}[network]
    split = cut(
        reference(n_classes=10, image_shape=shape),
        after=reference.cut,
        bottleneck=Bottleneck(channels=8, activation="sigmoid"),
        mechanism=Gaussian(std=STD),
        example=torch.zeros(2, *shape),
    )
    split.client.to(device)
    split.server.to(device)
    return split


def make_images(shape: tuple[int, int, int], n: int, device: torch.device) -> ImageSet:
    """Random pixels: speed does not depend on what they show."""
    generator = torch.Generator().manual_seed(0)

    def part(count: int) -> Part:
        pixels = torch.randint(0, 256, (count, *shape), generator=generator).to(torch.uint8)
        return Part(pixels, torch.arange(count) % 10).to(device)

    return ImageSet("random", 10, part(n), part(16), part(16), part(16))


def ours(split: Split, data: ImageSet, recipe: Recipe, device: torch.device) -> Callable[[int], None]:
    """An epoch of our own loop: steps, gauges, and a look at the loss now and then."""
    run = _Run(open_place(str(device), recipe.precision), split, data, recipe, (), None, Silent())
    run._train_mode()

    def epoch(number: int) -> None:
        run.course = Course(epoch=number)
        run._steps_of_epoch(StopWhen(None))

    return epoch


def bare(split: Split, data: ImageSet, recipe: Recipe, device: torch.device) -> Callable[[int], None]:
    """The same step written out by hand."""
    model = nn.Sequential(split.client.encoder, split.server).train()
    if recipe.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = _sgd(model, recipe)
    pixels, labels = data.train.pixels, data.train.labels

    def epoch(number: int) -> None:
        order = torch.randperm(len(labels)).to(device)
        for start in range(0, len(labels) - recipe.batch_size + 1, recipe.batch_size):
            index = order[start : start + recipe.batch_size]
            x, y = crop_and_flip(pixels[index].float().div_(255), recipe.augment.crop), labels[index]
            if recipe.channels_last:
                x = x.contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bf16"):
                z = model[0](x).float()
                loss = F.cross_entropy(model[1](z + STD * torch.randn_like(z)).float(), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

    return epoch


def crop_and_flip(x: torch.Tensor, pad: int) -> torch.Tensor:
    """The augmentation as one would write it by hand."""
    n, c, h, w = x.shape
    padded = F.pad(x, (pad,) * 4)
    rows = torch.randint(0, 2 * pad + 1, (n, 1), device=x.device) + torch.arange(h, device=x.device)
    columns = torch.randint(0, 2 * pad + 1, (n, 1), device=x.device) + torch.arange(w, device=x.device)
    columns = torch.where(torch.rand(n, 1, device=x.device) < 0.5, columns, columns.flip(1))
    return padded[
        torch.arange(n, device=x.device)[:, None, None, None],
        torch.arange(c, device=x.device)[None, :, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


def _sgd(module: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        module.parameters(), lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay, nesterov=True
    )


def compare(network: str, *, device: torch.device, rounds: int) -> dict[str, Any]:
    """Median seconds of a chunk on both sides, taken in turns."""
    on_gpu = device.type == "cuda"
    shape = (3, 32, 32) if on_gpu else (1, 28, 28)
    batch, steps = (256, 60) if on_gpu else (128, 8)
    recipe = Recipe(
        epochs=rounds + 1,
        batch_size=batch,
        precision="bf16" if on_gpu else "float32",
        channels_last=on_gpu,
        augment=Augment(crop=2, flip=True),
    )
    data = make_images(shape, batch * steps, device)
    sides = {
        "ours": ours(make_split(network, shape, device), data, recipe, device),
        "bare": bare(make_split(network, shape, device), data, recipe, device),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, epoch in sides.items():
            started = now(device)
            epoch(number)
            if number > 0:  # the first round warms up
                times[name].append((now(device) - started) / steps)
    median = {name: statistics.median(values) for name, values in times.items()}
    return {
        "network": network,
        "batch": batch,
        "ms_per_step": {k: round(1e3 * v, 3) for k, v in median.items()},
        "ratio": round(median["ours"] / median["bare"], 4),
        "rounds": rounds,
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    device = torch.device(words.device)
    rows = [
        compare(n, device=device, rounds=words.rounds) for n in (["vgg11"] if device.type == "cuda" else ["small-cnn"])
    ]
    result = {
        "command": f"python benchmarks/training_overhead.py --device {words.device}",
        "rows": rows,
        "environment": environment(),
    }
    publish(result, words.out)


if __name__ == "__main__":
    main()
