"""Peak memory of a CIFAR-10 run: of the process, and of the GPU where there is one.

    python benchmarks/peak_memory.py --device cpu  --out results/peak-memory-cpu.json
    python benchmarks/peak_memory.py --device cuda --out results/peak-memory-cuda.json

Random pixels of CIFAR-10's sizes (50,000 train, 10,000 test images in four roles): memory does not depend on what they
show. The run is cut short by a time budget; it checkpoints, as every run does.
"""

import argparse
import resource
import tempfile
from pathlib import Path

import torch
from measuring import publish

from splitveil.cli.runs import environment
from splitveil.data import Augment, ImageSet, Part
from splitveil.mechanisms import Gaussian
from splitveil.networks import vgg11
from splitveil.split import Bottleneck, cut
from splitveil.training import Recipe, find_device, train

SHAPE = (3, 32, 32)
ROLES = {"train": 48_000, "auxiliary": 5_000, "selection": 2_000, "victims": 5_000}
MIB = 2**20


def images() -> ImageSet:
    """A set as large as CIFAR-10."""
    generator = torch.Generator().manual_seed(0)
    parts = {
        role: Part(torch.randint(0, 256, (n, *SHAPE), generator=generator, dtype=torch.uint8), torch.arange(n) % 10)
        for role, n in ROLES.items()
    }
    return ImageSet("random-cifar10", 10, **parts)


def resident() -> int:
    """The most memory this process has held so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def measure(device: torch.device, *, seconds: float) -> dict[str, int]:
    """Peaks in MiB after each stage of a run."""
    peaks = {"imports": resident()}
    data = images()
    peaks["images"] = resident()
    network = vgg11(n_classes=10, image_shape=SHAPE)
    bottleneck, noise = Bottleneck(channels=8, activation="sigmoid"), Gaussian(std=0.025)
    split = cut(network, after=vgg11.cut, bottleneck=bottleneck, mechanism=noise, example=torch.zeros(2, *SHAPE))
    on_gpu = device.type == "cuda"
    recipe = Recipe(
        epochs=1000,
        batch_size=256 if on_gpu else 128,
        augment=Augment(crop=4, flip=True),
        precision="bf16" if on_gpu else "float32",
        channels_last=on_gpu,
        time_budget=seconds,
    )
    with tempfile.TemporaryDirectory() as folder:
        train(split, data, recipe, out=Path(folder), device=str(device))
    peaks["training"] = resident()
    if on_gpu:
        peaks["gpu"] = torch.cuda.max_memory_reserved() // MIB
    return peaks


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    result = {
        "command": f"python benchmarks/peak_memory.py --device {words.device} --seconds {words.seconds:g}",
        "mib": measure(find_device(words.device), seconds=words.seconds),
        "pixels_mib": sum(ROLES.values()) * 3 * 32 * 32 // MIB,
        "environment": environment(),
    }
    publish(result, words.out)


if __name__ == "__main__":
    main()
