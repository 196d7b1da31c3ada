"""Bootstrap intervals of a mean over images, and over seeds where there are several.

    scores[target, attack, image]        target: a training seed of the client; attack: a seed of the attack
    replicate b:  resample targets, attacks within each target, and images; average
    interval:     the 2.5 % and 97.5 % quantiles of the replicates

Attack seeds are nested in target seeds. Images are crossed with both: every seed is scored on the same victims, so one
draw of images serves all seeds of a replicate (the pigeonhole bootstrap of Owen 2007). Drawing images anew for each
seed would treat the same victim under two seeds as two victims and give intervals that are too short.

Few members are resampled into few means: where two or three seeds differ more than images do, the interval holds the
truth far less often than its level says. It shows then how far these seeds lie apart, not where another would land.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.check import UsageError
from splitveil.randomness import stream

REPLICATES = 2000  # the 95 % limits of a normal mean then wander by about 3 % of the interval's width
CHUNK = 2**23  # resampled numbers held at once (64 MB)


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"


def interval(
    scores: Float[Tensor, " image"] | Float[Tensor, "attack image"] | Float[Tensor, "target attack image"],
    *,
    level: float = 0.95,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Interval:
    """Mean of all scores with its bootstrap interval, over images alone or over seeds too.

    Guarantees: low ≤ high; the same seed gives the same interval; order of images changes the mean by rounding alone.

    >>> print(interval(torch.full((10,), 0.5)))
    0.5 [0.5, 0.5]
    """
    table = scores.detach().double().cpu()
    table = table.reshape(*[1] * (3 - table.ndim), *table.shape)
    if table.numel() == 0:
        raise UsageError("an interval needs at least one score, got none; is the victims' part empty?")
    means = _replicates(table, replicates, stream(seed, "bootstrap"))
    low, high = torch.quantile(means, torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=means.dtype)).tolist()
    return Interval(table.mean().item(), low, high)


def _replicates(table: Float[Tensor, "target attack image"], count: int, rng: torch.Generator) -> Float[Tensor, " b"]:
    """Means of `count` resampled tables."""
    n_targets, n_attacks, n_images = table.shape
    flat, means = table.reshape(-1, n_images), []
    step = max(1, CHUNK // max(n_images, n_targets * n_attacks))
    for start in range(0, count, step):
        b = min(step, count - start)
        targets = _shares(b, 1, n_targets, rng)  # [b, 1, target]
        attacks = _shares(b, n_targets, n_attacks, rng)  # [b, target, attack]
        seeds = (targets.transpose(1, 2) * attacks).reshape(b, -1)
        means.append(((seeds @ flat) * _shares(b, 1, n_images, rng)[:, 0]).sum(1))
    return torch.cat(means)


def _shares(b: int, rows: int, n: int, rng: torch.Generator) -> Float[Tensor, "b rows n"]:
    """Share of each of n members in n draws with replacement, for b × rows independent draws."""
    picks = torch.randint(n, (b, rows, n), generator=rng)
    return torch.zeros(b, rows, n, dtype=torch.float64).scatter_add_(2, picks, torch.full(picks.shape, 1 / n).double())
