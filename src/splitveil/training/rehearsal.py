"""One step on copies, before anything is written: what a step would refuse is refused at once."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from splitveil.check import SplitVeilError, UsageError
from splitveil.data import ImageSet
from splitveil.randomness import SeededSource
from splitveil.regularizers.base import Progress, Step
from splitveil.split import Split
from splitveil.training.device import n_ranks
from splitveil.training.recipe import Recipe
from splitveil.training.setup import refuse_idle, refuse_statistics, steps_per_epoch
from splitveil.training.step import Joint, Term
from splitveil.types import Features, Images, Sent

MOST_IMAGES = 32  # enough for every layer and penalty to show what it cannot do


def rehearse(split: Split, data: ImageSet, recipe: Recipe, terms: Sequence[Term], *, device: torch.device) -> None:
    """Raise the UsageError that training would end in: sizes that do not fit, penalties that need noise.

    Guarantees: split and terms stay as they are.
    """
    steps_per_epoch(data.train, recipe, n_ranks=n_ranks())
    refuse_idle(recipe, terms)
    if n_ranks() > 1 and device.type == "cpu":
        refuse_statistics(split, recipe)
    split, terms = copy.deepcopy((split, terms))
    split.to(device).train()
    part = data.train.take(min(recipe.batch_size // n_ranks(), MOST_IMAGES)).to(device)
    x, y = part.images(), part.labels
    z, z_sent, logits = _forward(split, x, seed=recipe.seed)
    if logits.shape != (len(x), data.n_classes):
        wanted = f"({len(x)}, {data.n_classes})"
        raise UsageError(
            f"the network must give one score for each of {data.n_classes} classes, shape {wanted} for a batch of "
            f"{len(x)}; it gives {tuple(logits.shape)}"
        )
    progress = Progress(recipe.seed, 0, 0, recipe.epochs, recipe.lr, recipe.lr, None)
    step = Step(x, z, z_sent, y, logits, split.client.mechanism.noise_std, data.n_classes, progress)
    for term in terms:
        term.regularizer.to(device).bind(split.client, split.server)
        term.regularizer.fit(step)
        term.regularizer(step)


@torch.no_grad()
def _forward(split: Split, x: Images, *, seed: int) -> tuple[Features, Sent, Tensor]:
    try:
        z, z_sent, logits = Joint(split)(x, SeededSource(seed, "rehearsal"))
    except SplitVeilError:
        raise
    except Exception as error:  # whatever the user's own layers raise
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"the network fails on a batch of {len(x)} images {tuple(x.shape[1:])}: {reason}") from error
    return z, z_sent, logits
