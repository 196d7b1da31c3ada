"""A diffusion prior: images that are likely, given what was seen.

    train      D = argmin E ‖D(x + σn, σ) − x‖² (σ² + d²)/(σ d)²                 on auxiliary images, ln σ normal
    sample     images that D finds likely and that the client would have sent as what was seen (`sampling.py`)
    answer     the mean of several samples: its error tends to the posterior mean's as they grow in number

How hard what was seen pulls, g, is chosen on selection images. With churn η near 1 an early mistake is forgotten, and
samples gather near the posterior's mean: they show less variety than the posterior has, and fewer of them are needed.

`start="noise"` knows the client's gradient alone, and where that misleads it ends in a wrong place. `"decoder"` begins
near a decoder's picture, which is also observed, with a weight w that is chosen with g, and answers p + a (mean − p):
few samples scatter more than the picture errs, so they are followed as far as least squares says.

Sources: Karras et al. 2022 (training, schedule); Chung et al. 2023 (posterior sampling); Song et al. 2023 (weighting).
"""

import math
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Literal, final

import torch
from torch import Tensor, nn

from splitveil.attacks.averaging import Averaged
from splitveil.attacks.base import Attack, Course, Health, Inverter, Need
from splitveil.attacks.channel import channel_of
from splitveil.attacks.decoder import DecoderAttack, usual_decoder
from splitveil.attacks.descent import clock
from splitveil.attacks.keeping import beside, keeping, learned_once, once, shared
from splitveil.attacks.knowledge import Knowledge
from splitveil.attacks.pairs import Pairs, Seen
from splitveil.attacks.refinement import follow
from splitveil.attacks.sampling import Picture, Sampler
from splitveil.attacks.views import view
from splitveil.check import UsageError, at_least, fraction, one_of
from splitveil.fitting import Check, Fitted, Plan, Shuffled, fit
from splitveil.metrics import mse
from splitveil.networks.denoiser import Denoiser
from splitveil.randomness import SeededSource, derive
from splitveil.types import Images

CENTER, WIDTH = -0.7, 1.2  # of ln(σ/d) in training
N_OWN = 500  # auxiliary images for units and for e_t
N_SCORED = 500  # selection images on which a check measures the denoising loss
LEAST_APART = 50  # selection images that v is taken from; with fewer, those that choose g and w
GUIDES = (0.15, 0.4, 0.7, 1.0)  # g
TRUSTS = (0.1, 0.3, 1.0)  # w

Start = Literal["noise", "decoder"]


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
    n_tuned: int = 48  # selection images that choose g and w
    start: Start = "noise"
    decoder: DecoderAttack = field(default_factory=usual_decoder)  # that sampling may start from

    def __post_init__(self) -> None:
        one_of("start", self.start, ("noise", "decoder"))
        if self.start == "decoder" and self.decoder.told != "nothing":
            raise UsageError(
                f"sampling starts from a decoder told nothing, got told={self.decoder.told!r}; leave it out"
            )
        for name in ("width", "batch", "samples", "expectation", "n_tuned"):
            at_least(name, getattr(self, name), 1)
        at_least("steps", self.steps, 2, hint="one near the picture, and one before it")
        if self.width % 4:
            at_least("width", self.width, math.inf, hint="a multiple of 4: it is divided among attention's heads")
        fraction("churn", self.churn)

    @property
    def name(self) -> str:
        return "diffusion" + "-decoder" * (self.start == "decoder")

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({Need.PAIRS, Need.CLIENT})

    @property
    def hears_all(self) -> bool:
        return True

    def _fit(self, known: Knowledge, course: Course) -> Inverter:
        assert known.pairs is not None and known.selection is not None and known.client is not None  # noqa: PT018
        seed = course.seed
        selection = known.selection.first(N_SCORED, source=SeededSource(seed, "selection"))
        own = known.pairs.first(N_OWN, source=SeededSource(seed, "own"))
        fitted = self.prior(known, course)
        assert isinstance(fitted.network, Denoiser)
        channel = channel_of(known.client, own, loss="likelihood", draws=self.expectation, seed=seed)
        sampler = Sampler(fitted.network, channel, self.steps, self.churn, seed)
        is_rounded = bool(self._plan(own.x.device).bfloat16)
        sampler = replace(sampler, watch=course.watch, score=fitted.best.score, is_rounded=is_rounded)
        look = {"e": sampler.measure} | ({"pixels": sampler.measure_pixels} if self.start == "decoder" else {})
        measured = once(
            beside(course.state, "doubts"), lambda: {k: see(own.x) for k, see in look.items()}, device=own.x.device
        )
        sampler = replace(sampler, doubts=measured["e"], gaps=measured.get("pixels"))
        painted = self._paint(known, selection, course) if self.start == "decoder" else None
        tuned = Pairs(selection.x[: self.n_tuned], Seen(selection.seen.z_sent[:, : self.n_tuned]))
        sampled = self._tune(sampler, tuned, painted, fitted, course)
        return keeping(
            sampled, course.state, each=sampler.inputs_at_once(self.samples, channel.n_held(own.seen.z_sent))
        )

    def _paint(self, known: Knowledge, selection: Pairs, course: Course) -> "_Painted":
        """A decoder, and the variance of its errors on images that it was not fitted to."""
        releases = len(selection.seen.z_sent)
        attack: Attack = self.decoder if releases == 1 else Averaged(self.decoder, releases)
        painter = attack.fit(known, seed=course.seed, watch=course.watch, state=beside(course.state, "painter"))
        apart = slice(self.n_tuned if len(selection.x) >= self.n_tuned + LEAST_APART else 0, None)
        errors = selection.x[apart] - painter(Seen(selection.seen.z_sent[:, apart]))
        return _Painted(painter, errors.square().mean(0))

    def _plan(self, device: torch.device) -> Plan:
        return self.plan.suited(bfloat16=device.type == "cuda", channels_last=True)

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

        plan = self._plan(device)
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

    def _tune(
        self, sampler: Sampler, tuned: Pairs, painted: "_Painted | None", fitted: Fitted, course: Course
    ) -> "_Sampled":
        """Choose g and w on selection images: every candidate of every image is a row."""
        seconds, n, device = clock(), len(tuned.x), tuned.x.device
        tried = list(product(GUIDES, (0.0,) if painted is None else TRUSTS))

        def find() -> dict[str, Tensor]:
            rows = torch.arange(n, device=device).repeat(len(tried))
            guide, trust = (torch.tensor(side, device=device).repeat_interleave(n) for side in zip(*tried, strict=True))
            seen = Seen(tuned.seen.z_sent[:, rows])
            picture = None if painted is None else painted.picture(seen, trust)
            heard = sampler.channel.hear(seen.z_sent)
            x_hat = sampler.mean(heard, guide, samples=self.samples, picture=picture)
            share = torch.ones(len(tried), device=device)
            if picture is not None:
                sides = (each - picture.x for each in (tuned.x[rows], x_hat))
                share = follow(*(side.reshape(len(tried), -1) for side in sides))
                x_hat = torch.lerp(picture.x, x_hat, share.repeat_interleave(n)[:, None, None, None])
            errors = mse(tuned.x[rows], x_hat).reshape(len(tried), n).mean(1)
            return {"errors": errors.nan_to_num(nan=math.inf), "share": share}  # what leads nowhere is not chosen

        found = once(beside(course.state, "tuned"), find, device=device)
        errors = found["errors"].tolist()
        best = min(range(len(tried)), key=errors.__getitem__)
        chosen = (*tried[best], found["share"][best].item())
        if course.watch is not None:
            course.watch(Check(self.steps, 0.0, errors[best], seconds()))
        is_falling = fitted.still_falling or (painted is not None and painted.painter.health.still_falling)
        words = f"guide {chosen[0]:g}" + (f", trust {chosen[1]:g}, {chosen[2]:.0%} of the way" if painted else "")
        steps = fitted.checks[-1].step
        health = Health(selection_mse=errors[best], steps=steps, still_falling=is_falling, chosen=words)
        return _Sampled(replace(sampler, score=errors[best]), self.samples, chosen, painted, health)


@dataclass(frozen=True)
class _Painted:
    """A decoder whose pictures are observed."""

    painter: Inverter
    variance: Tensor

    def picture(self, seen: Seen, trust: Tensor) -> Picture:
        return Picture(self.painter(seen), trust, self.variance)


def _denoising(network: nn.Module, x: Images, source: SeededSource) -> Tensor:
    """The weighted denoising loss, about 1 for an untrained network."""
    d = network.spread
    assert isinstance(d, Tensor)
    sigma = d * (CENTER + WIDTH * source.normal((len(x),), device=x.device)).exp()
    noisy = x + sigma[:, None, None, None] * source.normal(x.shape, device=x.device)
    weight = (sigma.square() + d.square()) / (sigma * d).square()
    return (weight * mse(x, network(noisy, sigma))).mean()


@final
class _Sampled(Inverter):
    def __init__(
        self,
        sampler: Sampler,
        samples: int,
        chosen: tuple[float, float, float],
        painted: _Painted | None,
        health: Health,
    ) -> None:
        self._sampler, self._samples, self._painted, self._health = sampler, samples, painted, health
        self.guide, self.trust, self.share = chosen

    @property
    def health(self) -> Health:
        return self._health

    def __call__(self, seen: Seen) -> Images:
        heard = self._sampler.channel.hear(seen.z_sent)
        guide, trust = (torch.full((len(heard),), each, device=seen.z_sent.device) for each in (self.guide, self.trust))
        picture = None if self._painted is None else self._painted.picture(seen, trust)
        x_hat = self._sampler.mean(heard, guide, samples=self._samples, picture=picture)
        return x_hat if picture is None else torch.lerp(picture.x, x_hat, self.share)
