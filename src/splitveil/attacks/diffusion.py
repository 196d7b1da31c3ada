"""A diffusion prior: images that are likely, given what was seen.

    train      D = argmin E ‖D(x + σn, σ) − x‖² (σ² + d²)/(σ d)²                 on auxiliary images, ln σ normal
    guide      D̂(x_t) = D(x_t) + g σ_t² ∇ log N(z_sent; f(D(x_t)), s² + e_t)      the gradient passes through D
    sample     x_{t+1} = D̂ + σ_{t+1} (√(1 − η²) (x_t − D̂)/σ_t + η n)             from σ_max down to σ_min, then D̂
    answer     the mean of several samples: its error tends to the posterior mean's as they grow in number

e_t is how far f(D(x + σ_t n)) lies from f(x), per feature, measured on the attacker's own images: at a high noise level
the denoised image is a guess, and its features are trusted only that far. So guidance has its right size by itself; the
factor g is chosen on selection images. With η near 1 an early mistake is forgotten, and samples gather near the
posterior's mean: they show less variety than the posterior has, and fewer of them are needed.

Sources: Karras et al. 2022 (training, schedule); Chung et al. 2023 (posterior sampling); Song et al. 2023 (weighting).
"""

import math
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from splitveil.attacks.base import Attack, Course, Health, Inverter, Need, Watch
from splitveil.attacks.channel import Channel, Heard, channel_of
from splitveil.attacks.descent import clock
from splitveil.attacks.keeping import beside, keeping, learned_once, once, shared
from splitveil.attacks.knowledge import Knowledge
from splitveil.attacks.pairs import Pairs, Seen
from splitveil.attacks.views import view
from splitveil.check import at_least, fraction
from splitveil.fitting import Check, Fitted, Plan, Shuffled, fit
from splitveil.metrics import mse
from splitveil.networks.denoiser import Denoiser
from splitveil.randomness import SeededSource, derive
from splitveil.types import Images

CENTER, WIDTH = -0.7, 1.2  # of ln(σ/d) in training
HIGHEST, LOWEST = 8.0, 0.02  # σ/d of the first and the last step
CURVE = 7.0  # how far steps crowd at low noise (Karras et al.'s ρ)
N_OWN = 500  # auxiliary images for units and for e_t
N_SCORED = 500  # selection images on which a check measures the denoising loss
GUIDES = (0.15, 0.4, 0.7, 1.0)  # g
PIXELS = {"cuda": 2**21, "cpu": 2**17}  # of all rows at once (inputs × samples): some GB of a denoiser's activations
TELL_EVERY = 10  # sampling steps between two words to whoever watches


@final
@dataclass(frozen=True)
class DiffusionAttack(Attack):
    """Samples of the posterior under a denoiser's prior, averaged."""

    width: int = 64
    batch: int = 256
    plan: Plan = field(default_factory=lambda: Plan(steps=15_000, lr=1e-3, ema=0.999, check_every=250, warmup=200))
    steps: int = 80  # of sampling
    samples: int = 6  # averaged
    churn: float = 0.9  # η: share of fresh noise
    expectation: int = 8  # draws of a mechanism that is random beside additive noise
    n_tuned: int = 48  # selection images that choose g

    def __post_init__(self) -> None:
        for name in ("width", "batch", "steps", "samples", "expectation", "n_tuned"):
            at_least(name, getattr(self, name), 1)
        if self.width % 4:
            at_least("width", self.width, math.inf, hint="a multiple of 4: it is divided among attention's heads")
        fraction("churn", self.churn)

    @property
    def name(self) -> str:
        return "diffusion"

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({Need.PAIRS, Need.CLIENT})

    def _fit(self, known: Knowledge, course: Course) -> Inverter:
        assert known.pairs is not None and known.selection is not None and known.client is not None  # noqa: PT018
        seed = course.seed
        selection = known.selection.first(N_SCORED, source=SeededSource(seed, "selection"))
        own = known.pairs.first(N_OWN, source=SeededSource(seed, "own"))
        fitted = self.prior(known, course)
        assert isinstance(fitted.network, Denoiser)
        channel = channel_of(known.client, own.seen.z_sent, loss="likelihood", draws=self.expectation, seed=seed)
        sampler = Sampler(fitted.network, channel, self.steps, self.churn, seed)
        sampler = replace(sampler, watch=course.watch, score=fitted.best.score)
        measured = once(beside(course.state, "doubts"), lambda: {"e": sampler.measure(own.x)}, device=own.x.device)
        sampler = replace(sampler, doubts=measured["e"])
        tuned = Pairs(selection.x[: self.n_tuned], Seen(selection.seen.z_sent[:, : self.n_tuned]))
        sampled = self._tune(sampler, tuned, fitted, course)
        return keeping(sampled, course.state, each=sampler.inputs_at_once(self.samples))

    def prior(self, known: Knowledge, course: Course) -> Fitted:
        """What `learn` learns, scored on selection images."""
        assert known.selection is not None
        selection = known.selection.first(N_SCORED, source=SeededSource(course.seed, "selection"))
        return self.learn(known, selection.x, course)

    def learn(self, known: Knowledge, selection: Images, course: Course) -> Fitted:
        """A denoiser fitted on the auxiliary images, the same for every client: beside the fit, it is fitted once."""
        part, seed, device = known.auxiliary, course.seed, selection.device
        network = self._build(part.images(slice(min(len(part), 4 * N_OWN))), seed)
        order = Shuffled(len(part), size=self.batch, seed=seed, device=device)

        def loss(network: nn.Module, step: int) -> Tensor:
            source = SeededSource(seed, "denoise", step)
            return _denoising(network, view(part.images(order(step)), source), source)

        plan = replace(self.plan, bfloat16=device.type == "cuda", channels_last=True)
        sample = (part.images(order(0)), torch.ones(order.size, device=device))
        score = lambda net: _denoising(net, selection, SeededSource(seed, "score"))  # noqa: E731
        run = partial(fit, network, loss=loss, score=score, plan=plan, progress=course.watch, sample=sample)
        facts = (self.width, self.batch, self.plan, seed)
        place = shared(course.state, kind="denoiser", facts=facts, learned_from=part, scored_on=selection)
        return learned_once(course.state, place, lambda state: run(state=state))

    def _build(self, x: Images, seed: int) -> Denoiser:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(seed, "denoiser"))
            network = Denoiser((x.shape[1], x.shape[2], x.shape[3]), width=self.width)
        network.to(x.device).calibrate(x)
        return network

    def _tune(self, sampler: "Sampler", tuned: Pairs, fitted: Fitted, course: Course) -> "_Sampled":
        """Choose g on selection images: every candidate of every image is a row."""
        seconds, n, device = clock(), len(tuned.x), tuned.x.device

        def find() -> dict[str, Tensor]:
            rows = torch.arange(n, device=device).repeat(len(GUIDES))
            guide = torch.tensor(GUIDES, device=device).repeat_interleave(n)
            x_hat = sampler.mean(sampler.channel.hear(tuned.seen.z_sent).rows(rows), guide, samples=self.samples)
            errors = mse(tuned.x[rows], x_hat).reshape(len(GUIDES), n).mean(1)
            return {"errors": errors.nan_to_num(nan=math.inf)}  # a guide that leads nowhere is not chosen

        errors = once(beside(course.state, "tuned"), find, device=device)["errors"].tolist()
        best = min(range(len(GUIDES)), key=errors.__getitem__)
        if course.watch is not None:
            course.watch(Check(self.steps, 0.0, errors[best], seconds()))
        steps = fitted.checks[-1].step
        health = Health(selection_mse=errors[best], steps=steps, still_falling=fitted.still_falling)
        return _Sampled(replace(sampler, score=errors[best]), self.samples, GUIDES[best], health)


def _denoising(network: nn.Module, x: Images, source: SeededSource) -> Tensor:
    """The weighted denoising loss, about 1 for an untrained network."""
    d = network.spread
    assert isinstance(d, Tensor)
    sigma = d * (CENTER + WIDTH * source.normal((len(x),), device=x.device)).exp()
    noisy = x + sigma[:, None, None, None] * source.normal(x.shape, device=x.device)
    weight = (sigma.square() + d.square()) / (sigma * d).square()
    return (weight * mse(x, network(noisy, sigma))).mean()


@dataclass(frozen=True)
class Sampler:
    """Draws images that are likely under the denoiser, given what was seen."""

    network: Denoiser
    channel: Channel
    steps: int
    churn: float
    seed: int
    doubts: Float[Tensor, "step *feature"] | None = None  # e_t
    watch: Watch | None = None
    score: float = 0.0  # on selection images, for whoever watches

    @property
    def levels(self) -> list[float]:
        """σ_t, from high to low; the last step ends at 0."""
        d = self.network.spread.item()
        ends = [(d * bound) ** (1 / CURVE) for bound in (HIGHEST, LOWEST)]
        last = max(self.steps - 1, 1)
        return [(ends[0] + t / last * (ends[1] - ends[0])) ** CURVE for t in range(self.steps)] + [0.0]

    def inputs_at_once(self, samples: int) -> int:
        """How many inputs are sampled together."""
        device = self.network.mean.device.type
        return max(1, PIXELS.get(device, PIXELS["cpu"]) // (self.network.mean[0, 0].numel() * samples))

    @torch.no_grad()
    def measure(self, x: Images) -> Float[Tensor, "step *feature"]:
        """e_t: the mean squared error of a denoised image's features, per feature, at each level."""
        noise = SeededSource(self.seed, "doubts").normal(x.shape, device=x.device)
        each = self.inputs_at_once(1)
        parts = zip(torch.split(x, each), torch.split(noise, each), strict=True)
        return torch.stack([self._gaps(*part) for part in parts]).sum(0) / len(x)

    def _gaps(self, x: Images, noise: Images) -> Float[Tensor, "step *feature"]:
        """What `measure` averages, summed over some images."""
        clean = self.channel.expect(x)
        denoised = (self._denoise(x + sigma * noise, sigma) for sigma in self.levels[:-1])
        return torch.stack([(self.channel.expect(each) - clean).square().sum(0) for each in denoised])

    @torch.no_grad()
    def draw(self, n: int) -> Images:
        """Images of the prior alone: nothing was seen. Without churn, which gathers samples near their mean."""
        return replace(self, churn=0.0)._descend(n, None, None, SeededSource(self.seed, "prior"), n)

    def mean(self, heard: Heard, guide: Float[Tensor, " batch"], *, samples: int) -> Images:
        """The mean of `samples` samples for each input; the k-th uses the same noise for all inputs."""
        each = self.inputs_at_once(samples)
        pieces = [slice(i, i + each) for i in range(0, len(heard), each)]
        return torch.cat([self._mean(heard.rows(piece), guide[piece], samples) for piece in pieces])

    def _mean(self, heard: Heard, guide: Tensor, samples: int) -> Images:
        n = len(heard)
        rows = torch.arange(n, device=guide.device).repeat(samples)
        source = SeededSource(self.seed, "samples")
        drawn = self._descend(n * samples, heard.rows(rows), guide[rows], source, samples)
        return drawn.reshape(samples, n, *drawn.shape[1:]).mean(0)

    def _descend(
        self, rows: int, heard: Heard | None, guide: Tensor | None, source: SeededSource, distinct: int
    ) -> Images:
        shape, device = self.network.mean.shape[1:], self.network.mean.device

        def noise() -> Tensor:
            return source.normal((distinct, *shape), device=device).repeat_interleave(rows // distinct, 0)

        levels, seconds = self.levels, clock()
        x = self.network.mean + levels[0] * noise()
        for step, (sigma, after) in enumerate(pairwise(levels)):
            if self.watch is not None and step % TELL_EVERY == 0:
                self.watch(Check(step, 0.0, self.score, seconds()))
            if heard is None or guide is None:
                clean = self._denoise(x, sigma)
            else:
                clean = self._guided(x, sigma, step, heard, guide)
            kept = math.sqrt(1 - self.churn**2) * (x - clean) / sigma
            x = clean + after * (kept + self.churn * noise()) if after else clean
        return x.clamp(0, 1)

    def _guided(self, x: Images, sigma: float, step: int, heard: Heard, guide: Tensor) -> Images:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            clean = self._denoise(x, sigma)
            assert self.doubts is not None
            misfit = self.channel.misfit(clean, heard, step=step, more=self.doubts[step])
            (slope,) = torch.autograd.grad(misfit.sum(), x)
        return (clean - guide[:, None, None, None] * sigma**2 * slope).detach()

    def _denoise(self, x: Images, sigma: float) -> Images:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.device.type == "cuda"):
            denoised: Tensor = self.network(x, x.new_full((len(x),), sigma))
        return denoised


@final
class _Sampled(Inverter):
    def __init__(self, sampler: Sampler, samples: int, guide: float, health: Health) -> None:
        self._sampler, self._samples, self.guide, self._health = sampler, samples, guide, health

    @property
    def health(self) -> Health:
        return self._health

    def __call__(self, seen: Seen) -> Images:
        heard = self._sampler.channel.hear(seen.z_sent)
        guide = torch.full((len(heard),), self.guide, device=seen.z_sent.device)
        return self._sampler.mean(heard, guide, samples=self._samples)
