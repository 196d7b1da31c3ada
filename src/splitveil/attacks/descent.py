"""Descend the energy of many inputs at once, each as if it were alone.

    energy_b(v) = misfit(paint(v_b)) + w_b · prior(v_b)        Adam on v, whose moments are per number: rows never mix

The answer of each row is its image with the lowest energy so far; where energies are themselves drawn at random, or the
image is a network's, it is the running mean of its images instead.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.attacks.canvas import Canvas
from splitveil.attacks.channel import Channel, Heard
from splitveil.types import Images

BETAS = (0.9, 0.99)
EPSILON = 1e-3  # of a row's typical slope: a number whose slope is rounding error stays where it is
KEPT = 0.95  # share of the running mean that each step keeps
TELL_EVERY = 100  # steps between two looks at the energy

Tell = Callable[[int, float], None]  # (steps done, mean energy)


@dataclass(frozen=True)
class Descent:
    """How an energy is descended."""

    channel: Channel
    canvas: Canvas
    steps: int
    lr: float  # in units of v; falls to 0 along a half cosine

    def run(
        self,
        start: Float[Tensor, "start number"],
        base: Images,
        heard: Heard,
        weight: Float[Tensor, " batch"],
        *,
        marks: Sequence[int],
        tell: Tell | None = None,
    ) -> dict[int, Images]:
        """The answers after each number of steps in `marks`."""
        v = start.expand(len(base), -1).clone()
        moments = [torch.zeros_like(v) for _ in BETAS]
        kept = _Kept(self.canvas.is_averaged or self.channel.is_drawn, len(base), base.device)
        answers = {}
        for step in range(max(marks) + 1):
            x, energy, slope = self._look(base, v, heard, weight, step)
            kept.update(x, energy)
            if step in marks:
                answers[step] = kept.image.clamp(0, 1)
            if tell is not None and step % TELL_EVERY == 0:
                tell(step, energy.mean().item())
            v = self.canvas.settle(base, v - self._rate(step) * _adam(moments, slope, step))
        return answers

    def _look(self, base: Images, v: Tensor, heard: Heard, weight: Tensor, step: int) -> tuple[Images, Tensor, Tensor]:
        """The images, their energies and the energies' slopes. Only v is asked for gradients, never the client."""
        with torch.enable_grad():
            v = v.detach().requires_grad_()
            x = self.canvas.paint(base, v)
            seen = x + (x.clamp(0, 1) - x).detach()  # images lie in [0, 1]; the slope passes the border
            energy = self.channel.misfit(seen, heard, step=step) + weight * self.canvas.charge(x, v)
            (slope,) = torch.autograd.grad(energy.sum(), v)
        return seen.detach(), energy.detach(), slope

    def _rate(self, step: int) -> float:
        return self.lr * 0.5 * (1 + math.cos(math.pi * min(step, self.steps) / self.steps))


class _Kept:
    """The best image of each row, or the running mean of them."""

    def __init__(self, is_mean: bool, n: int, device: torch.device) -> None:
        self._is_mean, self._steps = is_mean, 0
        self._lowest = torch.full((n,), math.inf, device=device)
        self.image = torch.zeros(0, device=device)

    def update(self, x: Images, energy: Tensor) -> None:
        self._steps += 1
        if self._steps == 1:
            self.image, self._lowest = x, energy
        elif self._is_mean:
            self.image = torch.lerp(x, self.image, min(KEPT, 1 - 1 / self._steps))
        else:
            is_lower = energy < self._lowest
            self.image = torch.where(is_lower[:, None, None, None], x, self.image)
            self._lowest = torch.where(is_lower, energy, self._lowest)


def _adam(moments: list[Tensor], slope: Tensor, step: int) -> Tensor:
    first, second = moments
    first.lerp_(slope, 1 - BETAS[0])
    second.lerp_(slope.square(), 1 - BETAS[1])
    mean, square = (moment / (1 - beta ** (step + 1)) for moment, beta in zip(moments, BETAS, strict=True))
    floor = EPSILON * square.mean(1, keepdim=True).sqrt() + torch.finfo(slope.dtype).tiny
    return mean / (square.sqrt() + floor)


def clock() -> Callable[[], float]:
    """Seconds since now."""
    began = time.monotonic()
    return lambda: time.monotonic() - began
