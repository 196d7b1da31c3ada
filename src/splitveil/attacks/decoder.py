"""A decoder trained on the client's own releases: the field's standard attack, as strong as it can be made simply.

    minimize over θ   E ‖x − D_θ(z_sent)‖² [+ w · perceptual(x, D_θ(z_sent))],      z_sent = mechanism(encoder(x))

Each step draws fresh noise and a fresh view of each auxiliary image: the decoder learns the defense, not its draws.
Weights are averaged, the checkpoint is chosen on selection images, and training goes on until it is flat. Batch-norm
statistics are those of training: victims are decoded in eval mode, one by one as far as the network can tell.

It may be told the true label, or what the server answers: logits = head(z_sent), which whoever holds the head computes
and whoever listens reads. They tell no more of x than z_sent does, but the head learned from images that an outsider
does not have.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn

from splitveil.attacks.base import Attack, Course, Health, Inverter, Need
from splitveil.attacks.keeping import pieces
from splitveil.attacks.knowledge import Knowledge
from splitveil.attacks.pairs import Pairs, Seen
from splitveil.check import at_least, one_of
from splitveil.fitting import Check, Fitted, Plan, Shuffled, fit
from splitveil.metrics import lpips, mse, ssim
from splitveil.networks.decoders import RUNGS, Decoder, Rung
from splitveil.randomness import SeededSource, derive
from splitveil.types import Images

N_SCORED = 500  # selection images that choose the checkpoint; the same ones at each check
N_CALIBRATED = 500  # auxiliary pairs that give the units of the features
CHUNK = 250  # images decoded at once
USUAL_STEPS = 10_000  # an attack that may take more is called long
PERCEPTUAL = 0.03  # weight of 1 − SSIM or LPIPS, which are near 0.3 where the MSE is near 0.01

Objective = Literal["mse", "ssim", "lpips"]
Told = Literal["nothing", "label", "logits"]
Reader = Callable[[Seen], tuple[Tensor, ...]]  # what was seen → what the network is given


@final
@dataclass(frozen=True)
class DecoderAttack(Attack):
    """One rung of the decoder ladder."""

    rung: Rung
    objective: Objective = "mse"
    told: Told = "nothing"
    batch: int = 256
    plan: Plan = field(default_factory=Plan)

    def __post_init__(self) -> None:
        one_of("rung", self.rung, RUNGS)
        one_of("objective", self.objective, get_args(Objective))
        one_of("told", self.told, get_args(Told))
        at_least("batch", self.batch, 2, hint="batch norm needs two images")

    @property
    def name(self) -> str:
        parts = [f"decoder-{self.rung}", *[self.objective] * (self.objective != "mse")]
        parts += [self.told] * (self.told != "nothing") + ["long"] * (self.plan.steps > USUAL_STEPS)
        return "-".join(parts)

    @property
    def needs(self) -> frozenset[Need]:
        more = {"nothing": set[Need](), "label": {Need.LABEL}, "logits": {Need.HEAD}}
        return frozenset({Need.PAIRS} | more[self.told])

    def _fit(self, known: Knowledge, course: Course) -> Inverter:
        assert known.pairs is not None
        assert known.selection is not None
        pairs, device, seed = known.pairs, known.pairs.device, course.seed
        own = pairs.first(N_CALIBRATED, source=SeededSource(seed, "own"))
        selection = known.selection.first(N_SCORED, source=SeededSource(seed, "selection"))
        read = self._reader(known)
        network = self._build(own, read, known.n_classes, seed)
        order = Shuffled(len(pairs), size=self.batch, seed=seed, device=device)

        def loss(network: nn.Module, step: int) -> Tensor:
            drawn = pairs.draw(order(step), source=SeededSource(seed, "pairs", step), augment=True)
            return self._charge(drawn.x, network(*read(drawn.seen)))

        plan = self.plan.suited(bfloat16=device.type == "cuda", channels_last=True)
        fitted = fit(
            network,
            loss=loss,
            score=lambda net: _error(net, read, selection),
            plan=plan,
            progress=course.watch,
            state=course.state,
            sample=read(pairs.draw(order(0), source=SeededSource(seed, "sample")).seen),
        )
        return _Decoded(read, fitted, _error(fitted.network, read, own).item())

    def _reader(self, known: Knowledge) -> Reader:
        match self.told:
            case "nothing":
                return lambda seen: (seen.z_sent[0],)
            case "label":
                return _with_label
            case "logits":
                assert known.pairs is not None
                head = copy.deepcopy(known.head)
                assert head is not None
                return partial(_with_logits, head.to(known.pairs.device).eval())

    def _build(self, own: Pairs, read: Reader, n_classes: int | None, seed: int) -> Decoder:
        """An unfitted network on the pairs' device, its weights drawn from `seed` alone."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(seed, "decoder", self.rung))
            channels, height, width = own.x.shape[1:]
            network = Decoder(
                self.rung,
                feature_shape=tuple(own.seen.z_sent.shape[2:]),
                image_shape=(channels, height, width),
                n_classes=n_classes if self.told == "label" else None,
                n_logits=read(own.seen)[1].shape[1] if self.told == "logits" else None,
            )
        network.to(own.x.device).calibrate(own.x, own.seen.z_sent[0])
        return network

    def _charge(self, x: Images, x_hat: Images) -> Tensor:
        error = mse(x, x_hat).mean()
        match self.objective:
            case "mse":
                return error
            case "ssim":
                return error + PERCEPTUAL * (1 - ssim(x, x_hat)).mean()
            case "lpips":
                return error + PERCEPTUAL * lpips(x, x_hat).mean()


def _with_label(seen: Seen) -> tuple[Tensor, ...]:
    assert seen.y is not None
    return seen.z_sent[0], seen.y


@torch.no_grad()
def _with_logits(head: nn.Module, seen: Seen) -> tuple[Tensor, ...]:
    z_sent = seen.z_sent[0]
    with torch.autocast(z_sent.device.type, enabled=False):  # as the server answers
        return z_sent, head(z_sent).flatten(1)


@torch.no_grad()
def _error(network: nn.Module, read: Reader, pairs: Pairs) -> Tensor:
    return mse(pairs.x, _decode(network, read, pairs.seen)).mean()


@torch.no_grad()
def _decode(network: nn.Module, read: Reader, seen: Seen) -> Images:
    """Reconstructions by a fitted network, a chunk at a time."""
    return torch.cat([network(*read(piece)) for piece in pieces(seen, CHUNK)])


def usual_decoder() -> DecoderAttack:
    """The one that other attacks build on: the residual rung, as `standard` runs it."""
    return DecoderAttack("residual", batch=512, plan=Plan(steps=5000, lr=3e-3, ema=0.998, check_every=100))


@final
class _Decoded(Inverter):
    def __init__(self, read: Reader, fitted: Fitted, train_mse: float) -> None:
        self._read, self._network = read, fitted.network
        last: Check = fitted.checks[-1]
        self._health = Health(train_mse, fitted.best.score, last.step, fitted.still_falling)

    @property
    def health(self) -> Health:
        return self._health

    def __call__(self, seen: Seen) -> Images:
        return _decode(self._network, self._read, seen)
