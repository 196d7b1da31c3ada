"""Training against a critic inside the ordinary fit loop.

    critic      E C(x̂) − E C(x) + 10 E (‖∇C(x̃)‖ − 1)²,      x̃ = t x + (1 − t) x̂        one or more Adam steps
    generator   −E C(x̂), or how far C tells it from real images, beside what else it is charged

A `Duel` is the network that is fitted: the generator's weights are its parameters, which the loop moves, averages and
scores. The critic's weights and moments are its buffers, which the loop keeps and restores with everything else, and
which move here. So a fit that is interrupted goes on with the critic it had.

Source: Gulrajani et al., "Improved Training of Wasserstein GANs" (2017).
"""

from collections.abc import Callable
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from splitveil.networks.generator import Critic, Slope
from splitveil.randomness import NoiseSource
from splitveil.types import Images

BETAS = (0.0, 0.9)  # as Gulrajani et al.
EPSILON = 1e-8
PENALTY = 10.0  # weight of the gradient penalty
KINDS = ("weight", "first", "second")
SCALES = (1, 2, 4)  # pixels that are averaged, along each side

Judge = Callable[[Images], Tensor]
Slopes = Callable[[Images], Images]


@final
class Duel(nn.Module):
    """A generator, with the critic it is up against."""

    def __init__(self, generator: nn.Module, critic: Critic, *, lr: float) -> None:
        super().__init__()
        self.generator = generator
        self._critic = [critic, Slope(critic)]  # in a list: their weights are not ours to fit
        self._lr = lr
        self._names = [name for name, _ in critic.named_parameters()]
        for i, weight in enumerate(critic.parameters()):
            for kind in KINDS:
                start = weight.detach().clone() if kind == "weight" else torch.zeros_like(weight)
                self.register_buffer(f"{kind}_{i}", start)
        self.register_buffer("turns", torch.zeros(()))
        self.register_buffer("mean", torch.tensor(0.5))
        self.register_buffer("spread", torch.tensor(0.5))

    @torch.no_grad()
    def calibrate(self, x: Images) -> None:
        """Take the units in which the critic looks at images from the attacker's own."""
        self.get_buffer("mean").copy_(x.mean())
        self.get_buffer("spread").copy_((x - x.mean(0)).square().mean().sqrt().clamp_min(1e-3))

    def forward(self, *inputs: Tensor) -> Images:
        painted: Tensor = self.generator(*inputs)
        return painted

    def judge(self, x: Images) -> Tensor:
        """C(x), with gradients to x alone."""
        return self._judge(self._tensors("weight"))(x)

    def gap(self, real: Images, painted: Images) -> Tensor:
        """E C(x) − E C(x̂), with gradients to x̂ alone, in units of the images' spread."""
        unit = self.get_buffer("spread") * real[0].numel() ** 0.5
        told: Tensor = (self.judge(real).mean().detach() - self.judge(painted).mean()) / unit
        return told

    def teach(self, real: Images, painted: Images, source: NoiseSource) -> None:
        """One Adam step of the critic."""
        weights = [weight.detach().requires_grad_() for weight in self._tensors("weight")]
        with torch.autocast(real.device.type, enabled=False):  # a slope's slope wants its digits
            charge = wasserstein(self._judge(weights), self._slopes(weights), real, painted.detach(), source)
        self._move(torch.autograd.grad(charge, weights))

    @torch.no_grad()
    def _move(self, slopes: tuple[Tensor, ...]) -> None:
        weights, firsts, seconds = (self._tensors(kind) for kind in KINDS)
        turns = self.get_buffer("turns").add_(1)
        torch._foreach_lerp_(firsts, slopes, 1 - BETAS[0])
        torch._foreach_lerp_(seconds, torch._foreach_mul(slopes, slopes), 1 - BETAS[1])
        bias = (1 - BETAS[1] ** turns).sqrt()
        for weight, first, second in zip(weights, firsts, seconds, strict=True):
            weight.sub_(self._lr * first / (second.sqrt() / bias + EPSILON))

    def _tensors(self, kind: str) -> list[Tensor]:
        return [self.get_buffer(f"{kind}_{i}") for i in range(len(self._names))]

    def _judge(self, weights: list[Tensor]) -> Judge:
        named = dict(zip(self._names, weights, strict=True))
        mean, spread = self.get_buffer("mean"), self.get_buffer("spread")

        def judge(x: Images) -> Tensor:
            judged: Tensor = functional_call(self._critic[0], named, ((x - mean) / spread,))
            return spread * judged  # per pixel unit again: the penalty holds its slope at 1

        return judge

    def _slopes(self, weights: list[Tensor]) -> Slopes:
        """The gradient of what `_judge` judges: spread cancels."""
        named = {f"critic.{name}": weight for name, weight in zip(self._names, weights, strict=True)}
        mean, spread = self.get_buffer("mean"), self.get_buffer("spread")
        return lambda x: functional_call(self._critic[1], named, ((x - mean) / spread,))


def wasserstein(judge: Judge, slopes: Slopes, real: Images, painted: Images, source: NoiseSource) -> Tensor:
    """The critic's loss: how little better it finds real images, and the penalty on its slopes."""
    share = source.uniform((len(real), 1, 1, 1), device=real.device)
    steepness = slopes(torch.lerp(painted, real, share)).flatten(1).norm(dim=1)
    charge: Tensor = judge(painted).mean() - judge(real).mean() + PENALTY * (steepness - 1).square().mean()
    return charge


def energy_distance(a: Images, b: Images) -> Tensor:
    """How far two sets of images lie apart: 2 E‖a − b‖ − E‖a − a'‖ − E‖b − b'‖ over pixels, per √pixel.

    Guarantees: 0 for the same distribution (up to sampling), > 0 otherwise; needs two images of each.
    """
    center = b.mean(0)  # distances are differences of squares: small numbers keep their digits
    a, b = (a - center).flatten(1), (b - center).flatten(1)
    within = [_distances(each, each).sum() / (len(each) * (len(each) - 1)) for each in (a, b)]
    apart: Tensor = (2 * _distances(a, b).mean() - within[0] - within[1]) / a.shape[1] ** 0.5
    return apart


def _distances(a: Float[Tensor, "one pixel"], b: Float[Tensor, "other pixel"]) -> Float[Tensor, "one other"]:
    """All of them by one product, also backward: on a GPU `cdist` would hold a number for each pixel of each pair."""
    squares: Tensor = a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T
    return squares.clamp_min(EPSILON**2).sqrt()


def distance_over_scales(a: Images, b: Images) -> Tensor:
    """How far images `a` lie from images `b`: energy distances at full, half and quarter size, in units of b's spread.

    The mean of the three. Over pixels alone an energy distance looks at every pixel's spread, and hardly at how pixels
    hang together: white noise of the right mean and spread passes. At a quarter of the size it is far too gray.
    """
    apart = []
    for scale in SCALES:
        small, target = (F.avg_pool2d(x, scale, ceil_mode=True) for x in (a, b))
        spread = (target - target.mean(0)).square().mean().sqrt().clamp_min(EPSILON)
        apart.append(energy_distance(small, target) / spread)
    return torch.stack(apart).mean()
