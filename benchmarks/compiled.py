"""A step of the networks that attacks train: recorded, and compiled before it is recorded, in one run on a GPU.

    python benchmarks/compiled.py

For the residual decoder, the attention U-Net and the denoiser: milliseconds of a forward and backward pass in
bfloat16, their ratio, and the seconds until the first step is done. Where the compiler's work is on disk already that
is a second or two; `TORCHINDUCTOR_CACHE_DIR` names an empty folder to see what the first one waits for.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from splitveil.cli.runs import environment
from splitveil.networks.decoders import Decoder
from splitveil.networks.denoiser import Denoiser
from splitveil.recording import can_compile, recorded

DECODED, DENOISED = 512, 256  # images in a batch, as `standard` and the diffusion prior have them
Built = tuple[nn.Module, tuple[Tensor, ...], Tensor]


def decoder(rung: str) -> Callable[[], Built]:
    """A rung of the ladder, on features of 8×8×8."""

    def build() -> Built:
        z, x = (torch.rand(DECODED, *shape, device="cuda") for shape in ((8, 8, 8), (3, 32, 32)))
        network = Decoder(rung, feature_shape=(8, 8, 8), image_shape=(3, 32, 32)).cuda()  # type: ignore[arg-type]
        network.calibrate(x, z)
        return network, (z,), x

    return build


def denoiser() -> Built:
    """The diffusion prior."""
    x = torch.rand(DENOISED, 3, 32, 32, device="cuda")
    network = Denoiser((3, 32, 32)).cuda()
    network.calibrate(x)
    return network, (x, torch.ones(DENOISED, device="cuda")), x


NETWORKS = {"residual": decoder("residual"), "unet": decoder("unet"), "denoiser": denoiser}


def measure(build: Callable[[], Built], *, steps: int, is_compiled: bool) -> tuple[float, float]:
    """Milliseconds a step, and seconds before the second one."""
    torch.manual_seed(0)
    network, inputs, x = build()
    network = network.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    began = time.perf_counter()

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.mse_loss(network(*inputs), x)
        loss.backward()  # type: ignore[no-untyped-call]

    with recorded(network, inputs, bfloat16=True, is_compiled=is_compiled):
        step()
        torch.cuda.synchronize()
        waited = time.perf_counter() - began
        for _ in range(5):
            step()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / steps * 1e3, waited


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("results/compiled-cuda.json"))
    words = parser.parse_args()
    if not torch.cuda.is_available() or not can_compile():
        parser.error("this needs a CUDA device, triton and a C compiler")
    torch.backends.cudnn.benchmark = True
    found = {}
    for name, build in NETWORKS.items():
        plain, _ = measure(build, steps=words.steps, is_compiled=False)
        compiled, waited = measure(build, steps=words.steps, is_compiled=True)
        facts = {"recorded_ms": plain, "compiled_ms": compiled, "ratio": plain / compiled, "first_step_s": waited}
        found[name] = {key: round(value, 3) for key, value in facts.items()}
        print(f"{name:>9}  {plain:6.2f} ms → {compiled:6.2f} ms  {plain / compiled:.2f}×  first step {waited:.1f} s")
    command = f"python benchmarks/compiled.py --steps {words.steps}"
    facts = {"command": command, "networks": found, "environment": environment()}
    words.out.parent.mkdir(parents=True, exist_ok=True)
    words.out.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
