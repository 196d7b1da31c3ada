"""The attacker's own image that would have been sent most alike.

    x̂ = x_j,   j = argmin_j ‖z_sent − z̄_j‖²           k > 1: the mean of the k nearest

z̄_j is the mean of a few releases of the attacker's image j. The answer is a real picture and never a blend: poor in
MSE, but it shows who or what was sent where the attacker's images hold the like of it. What was answered for the
attacker's images is kept beside the fit: stopped and called again it goes on with those that were not yet asked for.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from splitveil.attacks.base import Attack, Course, Health, Inverter, Need
from splitveil.attacks.gathering import Gathering
from splitveil.attacks.knowledge import Knowledge
from splitveil.attacks.pairs import PairSource, Seen
from splitveil.check import at_least
from splitveil.metrics import mse
from splitveil.randomness import SeededSource
from splitveil.types import Images, Pixels

ASKED = 4  # releases of each own image that are averaged: the noise that is left is that of the victim's release
MAX_BYTES = 2**31  # of the features kept
CHUNK = 256  # images asked at once
BLOCK = 8192  # own images compared at once
N_SCORED = 500  # selection images


@final
@dataclass(frozen=True)
class Retrieval(Attack):
    """The nearest of the attacker's own images in the space of what is sent, or the mean of the `k` nearest."""

    k: int = 1

    def __post_init__(self) -> None:
        at_least("k", self.k, 1)

    @property
    def name(self) -> str:
        return "nearest" if self.k == 1 else f"nearest-{self.k}"

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({Need.PAIRS})

    def _fit(self, known: Knowledge, course: Course) -> Inverter:
        assert known.pairs is not None
        assert known.selection is not None
        selection = known.selection.first(N_SCORED, source=SeededSource(course.seed, "nearest", "selection"))
        gathering = Gathering.before(course, selection.x)
        features, pixels = _library(known.pairs, course.seed, gathering)
        inverter = _Nearest(features, pixels, min(self.k, len(pixels)))
        gathering.score = mse(selection.x, inverter(selection.seen)).mean().item()
        inverter.rate(gathering.score)
        gathering.tell()
        return inverter


@final
class _Nearest(Inverter):
    def __init__(self, features: Float[Tensor, "own dim"], pixels: Pixels, k: int) -> None:
        self._features, self._pixels, self._k = features, pixels, k
        self._health = Health()

    @property
    def health(self) -> Health:
        return self._health

    def rate(self, selection_mse: float) -> None:
        """Remember how it does on selection images."""
        self._health = Health(selection_mse=selection_mse)

    @torch.no_grad()
    def __call__(self, seen: Seen) -> Images:
        found = nearest(seen.z_sent[0].flatten(1), self._features, k=self._k)
        return self._pixels[found].float().div_(255).mean(1)


def nearest(
    queries: Float[Tensor, "query dim"], library: Float[Tensor, "own dim"], *, k: int
) -> Int[Tensor, "query k"]:
    """The k nearest rows of the library, nearest first; a block at a time, so that no full table is held."""
    gap = torch.empty(len(queries), 0, device=queries.device)
    place = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
    for start in range(0, len(library), BLOCK):
        block = library[start : start + BLOCK]
        gaps = block.square().sum(1) - 2 * queries @ block.T  # ‖query‖² is the same for all
        best, where = gaps.topk(min(k, len(block)), largest=False)
        gap, place = torch.cat([gap, best], 1), torch.cat([place, where + start], 1)
        gap, order = gap.topk(min(k, gap.shape[1]), largest=False)
        place = place.gather(1, order)
    return place


@torch.no_grad()
def _library(pairs: PairSource, seed: int, gathering: Gathering) -> tuple[Float[Tensor, "own dim"], Pixels]:
    """What is sent for the attacker's own images, and those images as bytes."""
    like = pairs.first(1, source=SeededSource(seed, "nearest", "shape"))
    sent = like.seen.z_sent[0, 0].flatten()
    n = min(len(pairs), MAX_BYTES // (4 * len(sent)))
    features, pixels = sent.new_zeros(n, len(sent)), like.x.new_zeros(n, *like.x.shape[1:], dtype=torch.uint8)
    chunks = torch.split(torch.arange(n, device=pairs.device), CHUNK)

    def add(i: int) -> None:
        drawn = [pairs.draw(chunks[i], source=SeededSource(seed, "nearest", i, t)) for t in range(ASKED)]
        place = slice(i * CHUNK, (i + 1) * CHUNK)
        features[place] = torch.stack([each.seen.z_sent[0].flatten(1) for each in drawn]).mean(0)
        pixels[place] = (drawn[0].x * 255).round().to(torch.uint8)

    gathering.gather("library", len(chunks), {"features": features, "pixels": pixels}, add)
    return features, pixels
