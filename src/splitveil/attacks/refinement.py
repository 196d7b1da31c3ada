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

from splitveil.attacks.base import Course, Health, Inverter, Watch
from splitveil.attacks.descent import Descent, Tell, clock
from splitveil.attacks.keeping import beside, once, pieces
from splitveil.attacks.pairs import Pairs, PairSource, Seen
from splitveil.fitting import Check
from splitveil.metrics import mse
from splitveil.randomness import SeededSource, stream
from splitveil.types import Images

CHUNK = {"cuda": 1000, "cpu": 50}  # inputs at once: an interrupted search loses these at most
LARGE = 64 * 64  # pixels; of larger images fewer at once, so that the maps of an encoder or generator take no more
HELD = 5 * 10**9  # numbers held at once, 20 GB: of 1000 images of 64 × 64 pixels, pixels and their moments are 0.4 GB,
# a deep image prior of width 24 is 17 GB (at 32 × 32, 5 GB), and a wider one is searched for fewer images at once

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

    @property
    def health(self) -> Health:
        """How the decoder's fit went; a mean image is fitted at once."""
        return Health() if self.decoder is None else self.decoder.health


@dataclass(frozen=True)
class Search:
    """Everything but the weight and the number of steps."""

    descent: Descent
    begin: Begin
    start: Callable[[Seen], Start]

    def inputs_at_once(self, seen: Seen) -> int:
        """How many are searched together, of what was seen like this."""
        most, n_pixels = CHUNK.get(seen.z_sent.device.type, CHUNK["cpu"]), self.begin.mean[0, 0].numel()
        n_held = self.descent.canvas.n_held + self.descent.channel.n_held(seen.z_sent)
        return max(1, min(most, most * LARGE // n_pixels, HELD // n_held))

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


def tune(search: Search, tried_on: Pairs, candidates: Candidates, course: Course, *, name: str = "tuned") -> "Searched":
    """Try every candidate on selection images and keep the best; under `name` beside the fit, it is tried once."""
    x, seen = tried_on.x, tried_on.seen

    def find() -> dict[str, Tensor]:
        tell = _teller(course.watch, mse(x, search.begin(seen)).mean().item())
        tried = search(seen, *candidates, tell=tell)
        scores = {key: mse(x, x_hat).mean().item() for key, x_hat in tried.items()}
        best = min(scores, key=scores.__getitem__)
        return {"choice": torch.tensor([*best, scores[best]], dtype=torch.float64)}

    weight, steps, score = once(beside(course.state, name), find, device=torch.device("cpu"))["choice"].tolist()
    stop, began = round(steps), search.begin.health
    health = Health(began.train_mse, score, began.steps + stop, began.still_falling)
    _teller(course.watch, score)(stop, 0.0)
    return Searched(search, weight, stop, health, course.watch)


@final
class Searched(Inverter):
    """A search whose weight and number of steps are chosen."""

    def __init__(self, search: Search, weight: float, stop: int, health: Health, watch: Watch | None) -> None:
        self.search, self.weight, self.stop, self._health, self._watch = search, weight, stop, health, watch

    @property
    def health(self) -> Health:
        return self._health

    def __call__(self, seen: Seen) -> Images:
        tell = _teller(self._watch, self.health.selection_mse or 0.0)
        each = pieces(seen, self.search.inputs_at_once(seen))
        parts = [self.search(piece, (self.weight,), (self.stop,), tell) for piece in each]
        return torch.cat([part[self.weight, self.stop] for part in parts])


def _teller(watch: Watch | None, score: float) -> Tell:
    """Tells a watcher of steps and energies, beside the error on selection images that is known so far."""
    seconds = clock()
    return lambda step, energy: None if watch is None else watch(Check(step, energy, score, seconds()))


def some(pairs: PairSource, n: int, *, seed: int, after: int = 0) -> Pairs:
    """`n` pairs chosen at random, as they are; `after` so many others, which the same seed chooses first."""
    index = torch.randperm(len(pairs), generator=stream(seed, "some"))[after : after + n].to(pairs.device)
    return pairs.draw(index, source=SeededSource(seed, "some", *[after] * bool(after)))
