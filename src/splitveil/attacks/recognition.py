"""What a network that knows the like of them sees in reconstructions: the class, or the person.

    classifier-on-reconstruction    argmax_c C(x̂)_c = y           C trained on the attacker's images
    re-identification               R@k: one of the k gallery photos nearest to x̂ in e(·) shows the same person

e is the penultimate layer of C. The gallery holds other photos of the people attacked, never the photos attacked.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import comb
from pathlib import Path
from types import MappingProxyType
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from splitveil.attacks.base import Health, Watch
from splitveil.attacks.retrieval import nearest
from splitveil.attacks.views import view
from splitveil.check import UsageError
from splitveil.data import Part
from splitveil.fitting import Fitted, Plan, Shuffled, fit
from splitveil.networks import resnet20
from splitveil.randomness import SeededSource, derive
from splitveil.types import Images, Labels, Logits
from splitveil.writing import read_tensors, write_tensors

CHUNK = 500  # images looked at at once
N_SCORED = 1000  # selection images that choose the checkpoint
NO_WORDS: Mapping[str, str] = MappingProxyType({})
STEPS, FALLING = "steps", "still falling"  # among the words that are kept with a recognizer
SMOOTHING = 0.05  # of the labels: reconstructions are not what was trained on


@final
@dataclass(frozen=True)
class Recognition:
    """How a recognizer is trained."""

    batch: int = 256
    plan: Plan = field(default_factory=lambda: Plan(steps=3000, lr=3e-3, weight_decay=0.05, check_every=250))

    def can_learn(self, own: Part) -> bool:
        """Whether these images have labels, and are large enough for the network."""
        return min(own.image_shape[1:]) >= resnet20.least_size and bool((own.labels >= 0).any())

    def fit(
        self,
        own: Part,
        selection: Part,
        *,
        n_classes: int,
        seed: int = 0,
        watch: Watch | None = None,
        kept: Path | None = None,
        took: Callable[[], Mapping[str, str]] = dict,
    ) -> "Recognizer":
        """A recognizer from labeled images of `own`; found again in the file `kept`, with what `took` says."""
        part = own.select(torch.nonzero(own.labels >= 0).flatten())
        if not len(part):
            raise UsageError("a recognizer needs labeled images; these have no labels")
        network = self._build(part, n_classes, seed)
        facts = repr((self, n_classes, seed, len(part), len(selection)))
        plan = self.plan.suited(bfloat16=part.device.type == "cuda", channels_last=True)
        if kept is not None and (words := _read(network, kept, facts)) is not None:
            laid_out = torch.channels_last if plan.channels_last else torch.contiguous_format  # as it was fitted
            return Recognizer(network.to(memory_format=laid_out), words)  # type: ignore[call-overload]
        order = Shuffled(len(part), size=self.batch, seed=seed, device=part.device)
        chosen = selection.take(min(N_SCORED, len(selection)))

        def views(step: int) -> Images:
            return view(part.images(order(step)), SeededSource(seed, "recognition", step))

        def loss(network: nn.Module, step: int) -> Tensor:
            return F.cross_entropy(network(views(step)).float(), part.labels[order(step)], label_smoothing=SMOOTHING)

        def score(network: nn.Module) -> Tensor:
            recognizer = Recognizer(network)
            return (recognizer.logits(chosen.images()).argmax(1) != chosen.labels).float().mean()

        state = None if kept is None else kept.with_name(f"{kept.name}.{_short(facts)}.fit")
        fitted = fit(network, loss=loss, score=score, plan=plan, progress=watch, state=state, sample=(views(0),))
        words = {"facts": facts, **_told(fitted), **took()}
        if kept is not None and state is not None:
            write_tensors(kept, fitted.network.state_dict(), words)
            state.unlink(missing_ok=True)
        return Recognizer(fitted.network, words)

    def _build(self, part: Part, n_classes: int, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(seed, "recognition"))
            network = resnet20(n_classes=max(2, n_classes), image_shape=part.image_shape)
        return network.to(part.device)


@final
class Recognizer:
    """A trained network that names images and says how alike they are."""

    def __init__(self, network: nn.Module, words: Mapping[str, str] = NO_WORDS) -> None:
        self._network, self.words = network, words  # of its training, and what that took

    @property
    def health(self) -> Health:
        """How its training went; one that an older version kept does not tell."""
        return health_in(self.words)

    @torch.no_grad()
    def logits(self, x: Images) -> Logits:
        """One score per class."""
        return torch.cat([self._network(chunk).float() for chunk in torch.split(x, CHUNK)])

    @torch.no_grad()
    def embed(self, x: Images) -> Float[Tensor, "batch dim"]:
        """The penultimate layer, of length one."""
        assert isinstance(self._network, nn.Sequential)
        *body, classifier = self._network.children()
        assert isinstance(classifier, nn.Sequential)
        before = nn.Sequential(*body, *list(classifier.children())[:-1])
        return torch.cat([F.normalize(before(chunk).float(), dim=1) for chunk in torch.split(x, CHUNK)])


@final
class Gallery:
    """Known photos of the people who may have been sent."""

    def __init__(self, recognizer: Recognizer, part: Part) -> None:
        starts = range(0, len(part), CHUNK)
        pieces = [part.images(slice(i, i + CHUNK)) for i in starts]
        self._recognizer, self._labels = recognizer, part.labels
        self._vectors = torch.cat([recognizer.embed(x) for x in pieces])

    def found(self, x: Images, y: Labels, *, k: int) -> Float[Tensor, " batch"]:
        """1 where one of the k nearest photos shows the same person, else 0."""
        places: Int[Tensor, "batch k"] = nearest(self._recognizer.embed(x), self._vectors, k=min(k, len(self._labels)))
        return (self._labels[places] == y[:, None]).any(1).float()


def health_in(words: Mapping[str, str]) -> Health:
    """How a training went, from the words that are kept with it."""
    return Health(steps=int(words.get(STEPS, 0)), still_falling=words.get(FALLING) == str(True))


def chance_of_finding(photos: Int[Tensor, " photo"], y: Labels, *, k: int) -> float:
    """R@k where the k photos are drawn at random.

    >>> chance_of_finding(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1]), k=1)
    0.5
    """
    n, k = len(photos), min(k, len(photos))
    counts = torch.bincount(photos.cpu(), minlength=int(y.max()) + 1)[y.cpu()].tolist()
    return sum(1 - comb(n - count, k) / comb(n, k) for count in counts) / len(counts)


def _told(fitted: Fitted) -> dict[str, str]:
    """How a training went, in words that are kept with it."""
    last = fitted.checks[-1]
    return {"seconds": str(last.seconds), STEPS: str(last.step), FALLING: str(fitted.still_falling)}


def _short(facts: str) -> str:
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def _read(network: nn.Module, path: Path, facts: str) -> Mapping[str, str] | None:
    """Load weights kept by exactly the same training; its words, or None where there are none."""
    found = read_tensors(path)
    if found is None or found[1].get("facts") != facts:
        return None
    try:
        network.load_state_dict(found[0])
    except RuntimeError:  # other weights under the same words
        return None
    network.eval()
    return found[1]
