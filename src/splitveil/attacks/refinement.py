"""Search from a beginning, with the prior's weight and the number of steps chosen on selection images.

    answer = p + a (x̂ − p),      p: where it began,   a = ⟨x − p, x̂ − p⟩ / ‖x̂ − p‖² over selection images, in [0, 1]

A search explains what was seen, its noise too, and goes too far: it is followed as far as least squares says. Every
candidate of every selection image is a row of one batch, so trying eight weights takes little longer than one. Since a
may be 0 the search is never worse than its beginning there. One that needs all its steps is tried with half of them
too: its rate falls to 0 along the way, so its energy is flat at the end whether or not more steps would help.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
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

HURRIED = 0.02  # share of the error that twice the steps take off a search which should have had more

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
    center: Images | None = None  # what v = 0 stands for, where that is not the beginning

    def inputs_at_once(self, seen: Seen) -> int:
        """How many are searched together, of what was seen like this."""
        most, n_pixels = CHUNK.get(seen.z_sent.device.type, CHUNK["cpu"]), self.begin.mean[0, 0].numel()
        n_held = self.descent.canvas.n_held + self.descent.channel.n_held(seen.z_sent)
        return max(1, min(most, most * LARGE // n_pixels, HELD // n_held))

    def in_half_the_steps(self) -> "Search":
        """The same, its rate falling twice as fast."""
        return replace(self, descent=replace(self.descent, steps=self.descent.steps // 2))

    def __call__(
        self, seen: Seen, weights: tuple[float, ...], stops: tuple[int, ...], tell: Tell | None = None
    ) -> dict[tuple[float, int], Images]:
        """The answers to each weight and number of steps."""
        n = len(weights)
        base = self.begin(seen) if self.center is None else self.center.expand(seen.z_sent.shape[1], -1, -1, -1)
        start = self.start(seen)
        start = start if len(start) == 1 else start.repeat(n, 1)
        heard = self.descent.channel.hear(seen.z_sent.repeat(1, n, *[1] * (seen.z_sent.ndim - 2)))
        weight = torch.tensor(weights, device=base.device).repeat_interleave(len(base))
        answers = self.descent.run(start, base.repeat(n, 1, 1, 1), heard, weight, marks=stops, tell=tell)
        return {(weights[i], stop): part for stop, x_hat in answers.items() for i, part in enumerate(x_hat.chunk(n))}


@dataclass(frozen=True)
class Choice:
    """What selection images are for."""

    weight: float
    stop: int
    share: float = 1.0  # a

    def __str__(self) -> str:
        return f"weight {self.weight:g}, {self.stop} steps, {self.share:.0%} of the way"


def tune(
    search: Search,
    tried_on: Pairs,
    candidates: Candidates,
    course: Course,
    *,
    name: str = "chosen",
    is_followed: bool = True,
) -> "Searched":
    """Try every candidate on selection images and keep the best; under `name` beside the fit, it is tried once."""
    begin, cpu = search.begin, torch.device("cpu")

    def judge(score: float | None = None) -> _Judge:
        begun = begin(tried_on.seen)
        tell = _teller(course.watch, mse(tried_on.x, begun).mean().item() if score is None else score)
        return _Judge(tried_on, begun, is_followed, tell)

    def find() -> dict[str, Tensor]:
        choice, error = judge().best(search, candidates)
        return {"choice": torch.tensor([choice.weight, choice.stop, choice.share, error], dtype=torch.float64)}

    weight, steps, share, score = once(beside(course.state, name), find, device=cpu)["choice"].tolist()
    choice, before = Choice(weight, round(steps), share), begin.health

    def hurry() -> dict[str, Tensor]:
        return {"error": torch.tensor(judge(score).in_half(search, candidates, choice, score), dtype=torch.float64)}

    is_falling = before.still_falling
    if choice.stop == search.descent.steps and choice.share > 0 and not is_falling:
        in_half = once(beside(course.state, f"{name}.half"), hurry, device=cpu)["error"].item()
        is_falling = _is_hurried(score, in_half)
    health = Health(before.train_mse, score, before.steps + choice.stop, is_falling, str(choice))
    _teller(course.watch, score)(choice.stop, 0.0)
    return Searched(search, choice, health, course.watch)


@dataclass(frozen=True)
class _Judge:
    """Selection images, and where their searches begin."""

    pairs: Pairs
    begun: Images
    is_followed: bool  # part of the way
    tell: Tell

    def best(self, search: Search, candidates: Candidates) -> tuple[Choice, float]:
        """The candidate with the lowest error, and that."""
        found = [self._judged(*each) for each in _tried(search, self.pairs.seen, candidates, self.tell).items()]
        return min(found, key=lambda each: each[1])

    def in_half(self, search: Search, candidates: Candidates, choice: Choice, score: float) -> float:
        """The error with half the steps: with the same weight, and if that is much more, with the best one."""
        half = search.in_half_the_steps()
        if not half.descent.steps:
            return mse(self.pairs.x, self.begun).mean().item()
        _, error = self.best(half, ((choice.weight,), (half.descent.steps,)))
        if _is_hurried(score, error):
            weights, stops = candidates
            _, error = self.best(half, (weights, tuple(dict.fromkeys(stop // 2 for stop in stops))))
        return error

    def _judged(self, tried: tuple[float, int], x_hat: Images) -> tuple[Choice, float]:
        x, share = self.pairs.x, 1.0
        if self.is_followed:
            share = follow((x - self.begun)[None], (x_hat - self.begun)[None]).item()
            x_hat = torch.lerp(self.begun, x_hat, share)
        error = mse(x, x_hat).mean().nan_to_num(nan=math.inf)  # leads nowhere: not chosen
        return Choice(*tried, share), error.item()


def _is_hurried(score: float, in_half: float) -> bool:
    return score < (1 - HURRIED) * in_half


def _tried(search: Search, seen: Seen, candidates: Candidates, tell: Tell) -> dict[tuple[float, int], Images]:
    """The answers to every candidate, no more inputs at once than a search holds: each weight is a row of its own."""
    each = max(1, search.inputs_at_once(seen) // len(candidates[0]))
    found = [search(piece, *candidates, tell=tell) for piece in pieces(seen, each)]
    return {key: torch.cat([part[key] for part in found]) for key in found[0]}


def follow(wanted: Tensor, moved: Tensor) -> Float[Tensor, " tried"]:
    """a of each candidate: how far to go along what it moved, by least squares, between not at all and all the way."""
    wanted, moved = (each.flatten(1) for each in (wanted, moved))
    share = (wanted * moved).sum(1) / moved.square().sum(1).clamp_min(torch.finfo(moved.dtype).tiny)
    return share.nan_to_num(nan=0.0).clamp(0, 1)


@final
class Searched(Inverter):
    """A search of which everything is chosen."""

    def __init__(self, search: Search, choice: Choice, health: Health, watch: Watch | None) -> None:
        self.search, self.choice, self._health, self._watch = search, choice, health, watch

    @property
    def health(self) -> Health:
        return self._health

    def __call__(self, seen: Seen) -> Images:
        tell = _teller(self._watch, self.health.selection_mse or 0.0)
        return torch.cat([self._answer(piece, tell) for piece in pieces(seen, self.search.inputs_at_once(seen))])

    def _answer(self, seen: Seen, tell: Tell) -> Images:
        choice = self.choice
        found = self.search(seen, (choice.weight,), (choice.stop,), tell)[choice.weight, choice.stop]
        return found if choice.share == 1 else torch.lerp(self.search.begin(seen), found, choice.share)


def _teller(watch: Watch | None, score: float) -> Tell:
    """Tells a watcher of steps and energies, beside the error on selection images that is known so far."""
    seconds = clock()
    return lambda step, energy: None if watch is None else watch(Check(step, energy, score, seconds()))


def some(pairs: PairSource, n: int, *, seed: int, after: int = 0) -> Pairs:
    """`n` pairs chosen at random, as they are; `after` so many others, which the same seed chooses first."""
    index = torch.randperm(len(pairs), generator=stream(seed, "some"))[after : after + n].to(pairs.device)
    return pairs.draw(index, source=SeededSource(seed, "some", *[after] * bool(after)))
