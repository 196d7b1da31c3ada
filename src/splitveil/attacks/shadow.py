"""A shadow client: trained by an attacker who may not ask the victim's, and attacked in its place.

    f̃   = argmin E cross_entropy(head(mechanism(f̃(x))), y) + w · gap        x, y: the attacker's own images
    gap = Σ_l mean_c [(mu − mu_hat)² / var_hat + (log(var / var_hat))²]     l: the head's batch norms, c: their channels
    D   = a decoder trained on f̃'s releases                                 x̂ = D(z_sent of the victim's client)

With the server's own head in place (the attacker is the server, or has stolen its half) the shadow is trained to be
understood by that head, and its features come to mean what the victim's mean. Its batch norms remember more: mu_hat and
var_hat, the mean and variance of what the victim's features become at each of them, and the shadow's batches (mu, var)
are to become the same, as images made from a network alone are (Yin et al. 2020, DeepInversion: its R_feature). Without
the head there is no gap, two networks of one architecture agree on next to nothing, and the decoder reads a language it
never learned.
"""

import copy
from dataclasses import dataclass, field, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from splitveil.attacks.base import Attack, Course, Health, Inverter, Need
from splitveil.attacks.decoder import DecoderAttack, usual_decoder
from splitveil.attacks.keeping import beside
from splitveil.attacks.knowledge import Knowledge
from splitveil.attacks.oracle import ClientOracle
from splitveil.attacks.pairs import QueriedPairs, Seen
from splitveil.attacks.views import view
from splitveil.check import UsageError, at_least
from splitveil.data import Part
from splitveil.fitting import Plan, Shuffled, fit
from splitveil.randomness import SeededSource, derive, stream
from splitveil.split import Client
from splitveil.types import Images, Labels

CHOOSING = 5  # one of the attacker's images of so many chooses checkpoints
N_SCORED = 1000  # of them at most
HIDDEN = 256  # units of a head of the attacker's own
LIVELY = Plan(steps=12_000, lr=2e-3, weight_decay=0.02, check_every=200)


@final
@dataclass(frozen=True)
class ShadowAttack(Attack):
    """Train a client of the same family, then a decoder on it; with `head`, under the server's own head."""

    head: bool = False
    statistics: float = 10.0  # w; without the head, or with one that has no batch norms, there are none to match
    batch: int = 256
    plan: Plan = LIVELY
    decoder: DecoderAttack = field(default_factory=usual_decoder)

    def __post_init__(self) -> None:
        at_least("batch", self.batch, 2, hint="batch norm needs two images")
        at_least("statistics", self.statistics, 0)
        if self.decoder.told != "nothing":
            raise UsageError(f"a shadow's decoder is told nothing, got told={self.decoder.told!r}; leave it out")

    @property
    def name(self) -> str:
        return "shadow-head" if self.head else "shadow"

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({Need.FAMILY, Need.HEAD} if self.head else {Need.FAMILY})

    def _fit(self, known: Knowledge, course: Course) -> Inverter:
        own, choosing = _dealt(known.auxiliary, course.seed)
        shadow, still_falling = self.shadow(known, course)
        oracle = ClientOracle(shadow)
        pairs, selection = QueriedPairs(own, oracle), QueriedPairs(choosing, oracle)
        mine = replace(known, pairs=pairs, selection=selection)
        decoder = self.decoder.fit(mine, seed=course.seed, watch=course.watch, state=course.state)
        return _Shadowing(decoder, still_falling)

    def shadow(self, known: Knowledge, course: Course) -> tuple[Client, bool]:
        """A client of the family, trained on the attacker's images; and whether its loss still fell at the end."""
        assert known.family is not None
        own, choosing = _dealt(known.auxiliary, course.seed)
        if known.n_classes is None or not bool((own.labels >= 0).all()):
            raise UsageError(f"attack {self.name!r} needs labeled images of the attacker's own; these have no labels")
        seed, device = course.seed, own.device
        client = known.family.fresh(seed).to(device).requires_grad_(True)
        pair = _Pair(client, self._head(known, client, own, seed).to(device), is_fixed=self.head)
        weight = self.statistics
        order = Shuffled(len(own), size=self.batch, seed=derive(seed, "shadow"), device=device)
        chosen = choosing.take(min(N_SCORED, len(choosing)))

        def loss(network: nn.Module, step: int) -> Tensor:
            rows, source = order(step), SeededSource(seed, "shadow", step)
            return pair.charge(view(own.images(rows), source), own.labels[rows], source, weight=weight)

        def score(network: nn.Module) -> Tensor:
            source = SeededSource(seed, "shadow", "selection")
            return pair.charge(chosen.images(), chosen.labels, source, weight=weight)

        plan = self.plan.suited(bfloat16=device.type == "cuda")
        state = beside(course.state, "shadow")
        still_falling = False
        if any(parameter.requires_grad for parameter in pair.parameters()):
            fitted = fit(pair, loss=loss, score=score, plan=plan, progress=course.watch, state=state)
            still_falling = fitted.still_falling
        return client.requires_grad_(False).eval(), still_falling

    def _head(self, known: Knowledge, client: Client, own: Part, seed: int) -> nn.Module:
        if self.head:
            assert known.head is not None
            return copy.deepcopy(known.head).requires_grad_(False)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(seed, "shadow", "head"))
            client.eval()
            dim = client.encode(own.images(slice(2)))[0].numel()
            assert known.n_classes is not None
            return nn.Sequential(nn.Flatten(), nn.Linear(dim, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, known.n_classes))


@final
class _Shadowing(Inverter):
    """A decoder of a shadow's releases: no more finished than the shadow is."""

    def __init__(self, decoder: Inverter, still_falling: bool) -> None:
        self._decoder, self._still_falling = decoder, still_falling

    @property
    def health(self) -> Health:
        health = self._decoder.health
        return replace(health, still_falling=health.still_falling or self._still_falling)

    def __call__(self, seen: Seen) -> Images:
        return self._decoder(seen)


@final
class _Pair(nn.Module):
    """Shadow and head; a head that is fixed also keeps its batch statistics."""

    def __init__(self, client: Client, head: nn.Module, *, is_fixed: bool) -> None:
        super().__init__()
        self.client, self.head, self.is_fixed = client, head, is_fixed
        self._gaps: list[Tensor] = []  # of the last pass
        for layer in head.modules() if is_fixed else ():
            if isinstance(layer, _BatchNorm) and layer.track_running_stats:
                layer.register_forward_pre_hook(self._look)

    def train(self, mode: bool = True) -> "_Pair":
        super().train(mode)
        if self.is_fixed:
            self.head.eval()
        return self

    def _look(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._gaps.append(statistics_gap(layer, inputs[0]))

    def forward(self, x: Tensor, source: SeededSource) -> Tensor:
        self._gaps.clear()
        logits: Tensor = self.head(self.client(x, source=source))
        return logits

    def charge(self, x: Images, y: Labels, source: SeededSource, *, weight: float) -> Tensor:
        """How far the shadow is from being understood, and from what the head remembers."""
        error = F.cross_entropy(self(x, source).float(), y)
        return error + weight * torch.stack(self._gaps).sum() if weight and self._gaps else error


def statistics_gap(layer: nn.Module, x: Float[Tensor, "batch channel *place"]) -> Float[Tensor, ""]:
    """How far this batch is from what a batch norm remembers, a mean over its channels; 0 where they agree.

    >>> statistics_gap(nn.BatchNorm1d(1), torch.tensor([[-1.0], [1.0]]))  # a fresh one remembers mean 0, variance 1
    tensor(0.)
    """
    assert isinstance(layer, _BatchNorm)
    assert layer.running_mean is not None
    assert layer.running_var is not None
    var, mean = torch.var_mean(x.float().transpose(0, 1).flatten(1), 1, correction=0)
    floor = layer.running_var + layer.eps
    return ((mean - layer.running_mean).square() / floor + ((var + layer.eps) / floor).log().square()).mean()


def _dealt(part: Part, seed: int) -> tuple[Part, Part]:
    """The attacker's images: to learn from, and to choose with."""
    if len(part) < 2 * CHOOSING:
        raise UsageError(f"a shadow needs at least {2 * CHOOSING} images of the attacker's own, got {len(part)}")
    order = torch.randperm(len(part), generator=stream(seed, "shadow", "roles")).to(part.device)
    n = len(part) // CHOOSING
    return part.select(order[n:]), part.select(order[:n])
