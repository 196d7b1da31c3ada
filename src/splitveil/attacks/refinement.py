"""Search from a beginning, with the prior's weight and the number of steps chosen on selection images.

Every candidate of every selection image is a row of one batch, so trying eight weights takes little longer than one.
"No step at all" may be a candidate: then the search is never worse than its beginning there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.attacks.base import Course, Health, Inverter
from splitveil.attacks.descent import Descent, Tell, clock
from splitveil.attacks.pairs import Pairs, PairSource, Seen
from splitveil.fitting import Check
from splitveil.metrics import mse
from splitveil.randomness import SeededSource, stream
from splitveil.types import Images

CHUNK = 500  # inputs at once

Start = Float[Tensor, "start number"]  # one for all inputs, or one for each
Candidates = tuple[tuple[float, ...], tuple[int, ...]]  # weights, and numbers of steps


@dataclass(frozen=True)
class Begin:
    """Where each search begins: the mean image, or what a decoder paints."""

    mean: Images
    decoder: Inverter | None

    def __call__(self, seen: Seen) -> Images:
        if self.decoder is None:
            return self.mean.expand(seen.z_sent.shape[1], -1, -1, -1)
        return self.decoder(seen)


@dataclass(frozen=True)
class Search:
    """Everything but the weight and the number of steps."""

    descent: Descent
    begin: Begin
    start: Callable[[Seen], Start]

    def __call__(
        self, seen: Seen, weights: tuple[float, ...], stops: tuple[int, ...], tell: Tell | None = None
    ) -> dict[tuple[float, int], Images]:
        """The answers to each weight and number of steps."""
        n = len(weights)
        base, start = self.begin(seen), self.start(seen)
        start = start if len(start) == 1 else start.repeat(n, 1)
        heard = self.descent.channel.hear(seen.z_sent.repeat(1, n, *[1] * (seen.z_sent.ndim - 2)))
        weight = torch.tensor(weights, device=base.device).repeat_interleave(len(base))
        answers = self.descent.run(start, base.repeat(n, 1, 1, 1), heard, weight, marks=stops, tell=tell)
        return {(weights[i], stop): part for stop, x_hat in answers.items() for i, part in enumerate(x_hat.chunk(n))}


def tune(search: Search, tried_on: Pairs, candidates: Candidates, course: Course) -> "Searched":
    """Try every candidate on selection images and keep the best."""
    seconds, watch = clock(), course.watch
    x, seen = tried_on.x, tried_on.seen
    prior = mse(x, search.begin(seen)).mean().item()

    def tell(step: int, energy: float) -> None:
        if watch is not None:
            watch(Check(step, energy, prior, seconds()))

    tried = search(seen, *candidates, tell=tell)
    scores = {key: mse(x, x_hat).mean().item() for key, x_hat in tried.items()}
    weight, stop = min(scores, key=scores.__getitem__)
    health = Health(selection_mse=scores[weight, stop], steps=stop)
    if watch is not None:
        watch(Check(stop, 0.0, scores[weight, stop], seconds()))
    return Searched(search, weight, stop, health)


@final
class Searched(Inverter):
    """A search whose weight and number of steps are chosen."""

    def __init__(self, search: Search, weight: float, stop: int, health: Health) -> None:
        self.search, self.weight, self.stop, self._health = search, weight, stop, health

    @property
    def health(self) -> Health:
        return self._health

    def __call__(self, seen: Seen) -> Images:
        rows = [slice(i, i + CHUNK) for i in range(0, seen.z_sent.shape[1], CHUNK)]
        parts = [self.search(Seen(seen.z_sent[:, row]), (self.weight,), (self.stop,)) for row in rows]
        return torch.cat([part[self.weight, self.stop] for part in parts])


def some(pairs: PairSource, n: int, *, seed: int) -> Pairs:
    """`n` pairs chosen at random, as they are."""
    index = torch.randperm(len(pairs), generator=stream(seed, "some"))[:n].to(pairs.device)
    return pairs.draw(index, source=SeededSource(seed, "some"))
