"""Sampling from a denoiser's prior, given what was seen.

    guide      D̂(x_t) = D(x_t) + σ_t² ∇ [g log N(z_sent; f(D(x_t)), s² + e_t) + w log N(p; D(x_t), v + ẽ_t)]
    sample     x_{t+1} = D̂ + σ_{t+1} (√(1 − η²) (x_t − D̂)/σ_t + η n)             from σ_max down to σ_min, then D̂

The gradient passes through D. p is a decoder's picture, where there is one, and v the variance of its errors: then the
samples begin near it, at half of the images' spread. e_t and ẽ_t are how far f(D(x + σ_t n)) lies from f(x) and D(x +
σ_t n) from x, measured on the attacker's own images: what is only a guess is trusted only that far. Under Laplace noise
its density, convolved with N(0, e_t), stands for N(z_sent; …) (`channel.py`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.attacks.base import Watch
from splitveil.attacks.channel import Channel, Heard
from splitveil.attacks.descent import clock
from splitveil.attacks.refinement import HELD
from splitveil.fitting import Check
from splitveil.networks.denoiser import Denoiser
from splitveil.randomness import SeededSource
from splitveil.types import Images

HIGHEST, LOWEST = 8.0, 0.02  # σ/d of the first and the last step
NEAR = 0.5  # σ/d of the first step from a picture on
CURVE = 7.0  # how far steps crowd at low noise (Karras et al.'s ρ)
PIXELS = {"cuda": 2**21, "cpu": 2**17}  # of all rows at once (inputs × samples): some GB of a denoiser's activations
TELL_EVERY = 10  # sampling steps between two words to whoever watches

Guide = Float[Tensor, " batch"]


@dataclass(frozen=True)
class Picture:
    """What a decoder painted of each input, and how far it is trusted."""

    x: Images
    trust: Float[Tensor, " batch"]  # w
    variance: Float[Tensor, "channel height width"]  # v

    def rows(self, rows: slice | Tensor) -> "Picture":
        """The same for some of the inputs."""
        return Picture(self.x[rows], self.trust[rows], self.variance)

    def misfit(self, x: Images, more: Float[Tensor, "channel height width"]) -> Float[Tensor, " batch"]:
        """w times −log likelihood of the picture, given each image; `more` is variance beside v."""
        far: Tensor = (x - self.x).square() / (2 * (self.variance + more))
        return self.trust * far.flatten(1).sum(1)


Observed = tuple[Heard, Guide, Picture | None]


@dataclass(frozen=True)
class Sampler:
    """Draws images that are likely under the denoiser, given what was seen."""

    network: Denoiser
    channel: Channel
    steps: int
    churn: float
    seed: int
    doubts: Float[Tensor, "step *feature"] | None = None  # e_t
    gaps: Float[Tensor, "step channel height width"] | None = None  # of pixels, as e_t is of features
    watch: Watch | None = None
    score: float = 0.0  # on selection images, for whoever watches
    is_rounded: bool = False  # to bfloat16, as it was trained

    @property
    def levels(self) -> list[float]:
        """σ_t, from high to low; the last step ends at 0."""
        d = self.network.spread.item()
        ends = [(d * bound) ** (1 / CURVE) for bound in (HIGHEST, LOWEST)]
        last = max(self.steps - 1, 1)
        return [(ends[0] + t / last * (ends[1] - ends[0])) ** CURVE for t in range(self.steps)] + [0.0]

    def inputs_at_once(self, samples: int, n_held: int = 0) -> int:
        """How many inputs are sampled together, of which the channel holds so many numbers each."""
        device = self.network.mean.device.type
        most = PIXELS.get(device, PIXELS["cpu"]) // self.network.mean[0, 0].numel()
        return max(1, min(most, HELD // max(1, n_held)) // samples)

    def measure(self, x: Images) -> Float[Tensor, "step *feature"]:
        """e_t: the mean squared error of a denoised image's features, per feature, at each level."""
        return self._measure(x, self.channel.expect)

    def measure_pixels(self, x: Images) -> Float[Tensor, "step channel height width"]:
        """The same of its pixels."""
        return self._measure(x, lambda x: x)

    @torch.no_grad()
    def _measure(self, x: Images, look: Callable[[Images], Tensor]) -> Tensor:
        noise = SeededSource(self.seed, "doubts").normal(x.shape, device=x.device)
        each = self.inputs_at_once(1)
        parts = zip(torch.split(x, each), torch.split(noise, each), strict=True)
        return torch.stack([self._gaps(*part, look) for part in parts]).sum(0) / len(x)

    def _gaps(self, x: Images, noise: Images, look: Callable[[Images], Tensor]) -> Tensor:
        """What is averaged, summed over some images."""
        clean = look(x)
        denoised = (self._denoise(x + sigma * noise, sigma) for sigma in self.levels[:-1])
        return torch.stack([(look(each) - clean).square().sum(0) for each in denoised])

    @torch.no_grad()
    def draw(self, n: int) -> Images:
        """Images of the prior alone: nothing was seen. Without churn, which gathers samples near their mean."""
        return replace(self, churn=0.0)._descend(n, None, SeededSource(self.seed, "prior"), n)

    def mean(self, heard: Heard, guide: Guide, *, samples: int, picture: Picture | None = None) -> Images:
        """The mean of `samples` samples for each input; the k-th uses the same noise for all inputs."""
        each = self.inputs_at_once(samples, self.channel.n_held(heard.z_sent))
        pieces = [slice(i, i + each) for i in range(0, len(heard), each)]
        seen = [(heard.rows(i), guide[i], None if picture is None else picture.rows(i)) for i in pieces]
        return torch.cat([self._mean(piece, samples) for piece in seen])

    def _mean(self, seen: Observed, samples: int) -> Images:
        heard, guide, picture = seen
        n = len(heard)
        rows = torch.arange(n, device=guide.device).repeat(samples)
        each = (heard.rows(rows), guide[rows], None if picture is None else picture.rows(rows))
        drawn = self._descend(n * samples, each, SeededSource(self.seed, "samples"), samples)
        return drawn.reshape(samples, n, *drawn.shape[1:]).mean(0)

    def _descend(self, rows: int, seen: Observed | None, source: SeededSource, distinct: int) -> Images:
        shape, device = self.network.mean.shape[1:], self.network.mean.device

        def noise() -> Tensor:
            return source.normal((distinct, *shape), device=device).repeat_interleave(rows // distinct, 0)

        picture = None if seen is None else seen[2]
        highest = HIGHEST if picture is None else NEAR
        steps = [t for t in enumerate(pairwise(self.levels)) if t[1][0] <= 1.001 * highest * self.network.spread.item()]
        seconds = clock()
        x = (self.network.mean if picture is None else picture.x) + steps[0][1][0] * noise()
        for step, (sigma, after) in steps:
            if self.watch is not None and step % TELL_EVERY == 0:
                self.watch(Check(step, 0.0, self.score, seconds()))
            clean = self._denoise(x, sigma) if seen is None else self._guided(x, sigma, step, *seen)
            kept = math.sqrt(1 - self.churn**2) * (x - clean) / sigma
            x = clean + after * (kept + self.churn * noise()) if after else clean
        return x.clamp(0, 1)

    def _guided(
        self, x: Images, sigma: float, step: int, heard: Heard, guide: Guide, picture: Picture | None
    ) -> Images:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            clean = self._denoise(x, sigma)
            assert self.doubts is not None
            misfit = guide * self.channel.misfit(clean, heard, step=step, more=self.doubts[step])
            if picture is not None:
                assert self.gaps is not None
                misfit = misfit + picture.misfit(clean, self.gaps[step])
            (slope,) = torch.autograd.grad(misfit.sum(), x)
        return (clean - sigma**2 * slope).detach()

    def _denoise(self, x: Images, sigma: float) -> Images:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.is_rounded):
            denoised: Tensor = self.network(x, x.new_full((len(x),), sigma))
        return denoised
