"""Auxiliary images with what the client sends for them: all that most attacks learn from.

pairs.draw(index)  →  (x, z_sent, y)           queried: fresh noise and a fresh view at each draw
                                               recorded: the same n answers for ever
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from splitveil.attacks.oracle import Oracle, Releases
from splitveil.attacks.views import view
from splitveil.data import Part
from splitveil.randomness import NoiseSource
from splitveil.types import Images, Labels

Pool = Literal["mean", "median", "arrived"]
SORTED = 32  # inputs whose releases are sorted at once: a sort holds three times as much beside them


@dataclass(frozen=True)
class Seen:
    """What reached the attacker of some inputs: T releases of each, and their labels where it knows them."""

    z_sent: Releases
    y: Labels | None = None


@dataclass(frozen=True)
class Pairs:
    """Images of the attacker's own, with what it saw of them."""

    x: Images
    seen: Seen


class PairSource(ABC):
    """Where pairs come from."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of images."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the pairs are."""

    @property
    @abstractmethod
    def is_fresh(self) -> bool:
        """Whether an image drawn again comes with fresh noise."""

    @abstractmethod
    def draw(self, index: Int[Tensor, " batch"], *, source: NoiseSource, augment: bool = False) -> Pairs:
        """The pairs of these images; `augment` asks for fresh views of them, where the client can still be asked."""

    def first(self, n: int, *, source: NoiseSource) -> Pairs:
        """The pairs of the first `n` images, as they are."""
        return self.draw(torch.arange(min(n, len(self)), device=self.device), source=source)


@final
class QueriedPairs(PairSource):
    """The attacker asks the client at each draw."""

    def __init__(self, part: Part, oracle: Oracle, *, releases: int = 1) -> None:
        self._part, self._oracle, self._releases = part, oracle, releases

    def __len__(self) -> int:
        return len(self._part)

    @property
    def device(self) -> torch.device:
        return self._part.device

    @property
    def is_fresh(self) -> bool:
        return True

    def draw(self, index: Int[Tensor, " batch"], *, source: NoiseSource, augment: bool = False) -> Pairs:
        x = self._part.images(index)
        x = view(x, source) if augment else x
        z_sent = self._oracle.release(x, source=source, releases=self._releases)
        return Pairs(x, Seen(z_sent, self._part.labels[index]))


@final
class RecordedPairs(PairSource):
    """Answers that were recorded once: n queries and not one more."""

    def __init__(self, pairs: Pairs) -> None:
        self._pairs = pairs

    def __len__(self) -> int:
        return len(self._pairs.x)

    @property
    def device(self) -> torch.device:
        return self._pairs.x.device

    @property
    def is_fresh(self) -> bool:
        return False

    def draw(self, index: Int[Tensor, " batch"], *, source: NoiseSource, augment: bool = False) -> Pairs:
        seen = self._pairs.seen
        y = None if seen.y is None else seen.y[index]
        return Pairs(self._pairs.x[index], Seen(seen.z_sent[:, index], y))


@final
class ChangedPairs(PairSource):
    """The same images, with something else in place of what was seen of them: one release for T, fewer directions."""

    def __init__(self, pairs: PairSource, change: Callable[[Seen], Seen]) -> None:
        self._pairs, self._change = pairs, change

    def __len__(self) -> int:
        return len(self._pairs)

    @property
    def device(self) -> torch.device:
        return self._pairs.device

    @property
    def is_fresh(self) -> bool:
        return self._pairs.is_fresh

    def draw(self, index: Int[Tensor, " batch"], *, source: NoiseSource, augment: bool = False) -> Pairs:
        pairs = self._pairs.draw(index, source=source, augment=augment)
        return Pairs(pairs.x, self._change(pairs.seen))


def one_release(seen: Seen, releases: int, pool: Pool) -> Seen:
    """One release in place of T."""
    return Seen(pooled(seen.z_sent[:releases], pool), seen.y)


def pooled(z_sent: Releases, pool: Pool) -> Float[Tensor, "1 batch *feature"]:
    """What stands for all releases: their mean, their median, or the mean of what is not exactly 0.

    >>> pooled(torch.tensor([[[0.0]], [[2.0]], [[3.0]], [[7.0]]]), "median")
    tensor([[[2.5000]]])
    >>> pooled(torch.tensor([[[0.0]], [[2.0]], [[3.0]], [[7.0]]]), "arrived")
    tensor([[[4.]]])
    """
    match pool:
        case "mean":
            return z_sent.mean(0, keepdim=True)
        case "median":
            return torch.cat([_median(piece) for piece in torch.split(z_sent, SORTED, 1)], 1)
        case "arrived":
            return z_sent.sum(0, keepdim=True) / (z_sent != 0).sum(0, keepdim=True).clamp_min(1)


def _median(z_sent: Releases) -> Float[Tensor, "1 batch *feature"]:
    middle = slice((len(z_sent) - 1) // 2, len(z_sent) // 2 + 1)
    return z_sent.sort(0).values[middle].mean(0, keepdim=True)
