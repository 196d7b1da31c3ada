"""What learned priors cost on a GPU: our forms of two layers against torch's own, in one run.

    python benchmarks/priors.py --device cuda --out results/priors-cuda.json
    python benchmarks/priors.py --device cpu --width 8 --rows 8 --rounds 1

denoise    forward and backward pass of the denoiser in autocast's precision, with our group norm and with torch's
critic     the gradient of a critic's slope penalty, written out and by differentiating a gradient
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from measuring import now, publish
from torch import nn

from splitveil.cli.runs import environment
from splitveil.networks.denoiser import Denoiser
from splitveil.networks.generator import Critic
from splitveil.networks.norm import GroupNorm

SHAPE = (3, 32, 32)
STEPS = 5  # of one round

Step = Callable[[], object]


@contextmanager
def torch_s_norm() -> Iterator[None]:
    """Torch's group norm in place of ours."""
    own = GroupNorm.forward
    GroupNorm.forward = nn.GroupNorm.forward  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        GroupNorm.forward = own  # type: ignore[method-assign]


def denoising(words: argparse.Namespace, device: torch.device) -> dict[str, Step]:
    """A step of guided sampling, as far as the denoiser goes."""
    torch.manual_seed(0)
    network = Denoiser(SHAPE, width=words.width).to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x, sigma = torch.rand(words.rows, *SHAPE, device=device), torch.ones(words.rows, device=device)

    def ours() -> object:
        seen = x.detach().requires_grad_()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            painted = network(seen, sigma)
        return torch.autograd.grad(painted.square().sum(), seen)

    def plain() -> object:
        with torch_s_norm():
            return ours()

    return {"ours": ours, "torch": plain}


def criticizing(words: argparse.Namespace, device: torch.device) -> dict[str, Step]:
    """The penalty's gradient in the critic's weights."""
    torch.manual_seed(0)
    critic = Critic(SHAPE, width=words.width).to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.rand(max(2, words.rows // 8), *SHAPE, device=device)
    weights = [weight for name, weight in critic.named_parameters() if name.endswith("weight")]

    def penalized(slope: torch.Tensor) -> object:
        return torch.autograd.grad((slope.flatten(1).norm(dim=1) - 1).square().mean(), weights)

    def twice() -> object:
        seen = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(critic(seen).sum(), seen, create_graph=True)
        return penalized(slope)

    return {"ours": lambda: penalized(critic.slope(x)), "torch": twice}


def compare(steps: dict[str, Step], *, device: torch.device, rounds: int) -> dict[str, Any]:
    """Milliseconds of a step of both, taken in turns."""

    def milliseconds(step: Step) -> float:
        began = now(device)
        for _ in range(STEPS):
            step()
        return 1000 * (now(device) - began) / STEPS

    for step in steps.values():
        step(), step()  # algorithms are chosen
    times = [{name: milliseconds(step) for name, step in steps.items()} for _ in range(rounds)]
    medians = {name: round(statistics.median(each[name] for each in times), 3) for name in steps}
    return {
        "milliseconds": medians,
        "ratio": round(statistics.median(each["torch"] / each["ours"] for each in times), 3),
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rows", type=int, default=2048, help="images of a step; the critic takes an eighth")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    device = torch.device(words.device)
    pairs = {"denoise": denoising(words, device), "critic": criticizing(words, device)}
    rows = {name: compare(steps, device=device, rounds=words.rounds) for name, steps in pairs.items()}
    command = f"python benchmarks/priors.py --device {words.device} --width {words.width} --rows {words.rows}"
    publish({"command": command, "rows": rows, "environment": environment()}, words.out)


if __name__ == "__main__":
    main()
