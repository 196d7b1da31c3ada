"""The surrogates that every promise is tested on, small."""

import warnings
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from references.steps import clouds, make_step
from splitveil.regularizers import entropy
from splitveil.regularizers.base import Penalty, Regularizer, Step
from splitveil.regularizers.entropy import (
    Charging,
    Gates,
    Gating,
    KeepAccuracy,
    KMeans,
    Parts,
    Share,
    Snr,
    Surrogate,
    Threshold,
)

MAKERS: dict[str, Callable[[], Regularizer]] = {
    "plain": entropy.plain,
    "unlabeled": entropy.unlabeled,
    "kmeans": lambda: entropy.kmeans(n_groups=3),
    "mixture": lambda: entropy.mixture(n_groups=2),
    "gated-pooling": lambda: entropy.gated_pooling(hidden=8),
    "slots": lambda: entropy.slots(n_slots=3, slot_dim=8),
    "mixture-prior": lambda: entropy.mixture_prior(n_groups=2),
    "hybrid": lambda: entropy.hybrid(n_groups=2),
    "correlated": lambda: entropy.correlated(rank=2),
    "staged": lambda: entropy.staged(at_epoch=1, n_slots=3),
    "keep-accuracy": lambda: KeepAccuracy(entropy.plain(), floor=0.5),
    "adaptive, all gates": lambda: Surrogate(
        KMeans(n_groups=2),
        threshold=Threshold(quantile=0.5),
        gates=Gates(dimension=True, snr=Snr(), mass_power=2.0, share=Share(slope=None, level=None)),
    ),
    "running shutoff": lambda: entropy.slots(
        n_slots=3,
        slot_dim=8,
        parts=Parts(gates=Gating(dimension=True, snr=True), charging=Charging(shutoff="running")),
    ),
    "published": entropy.published,
    "notes-gated-pooling": entropy.notes_gated_pooling,
    "notes-slots": lambda: entropy.notes_slots(n_slots=3, silent_calls=1),
}


def make(name: str) -> Regularizer:
    """A fresh one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the literal presets warn
        return MAKERS[name]()


def wander(
    regularizer: Regularizer, *, device: str = "cpu", watch: Callable[[bool], None] = lambda is_watched: None
) -> list[Tensor]:
    """Losses, gradients and gauges of 40 steps in which a caller does all that may be done between fit and backward.

    Long enough for recordings with and without gauges, before and after a refit; `watch` is told when steps begin and
    end that ask nothing of the device.
    """
    shown: list[Tensor] = []
    for i in range(40):
        z, y = (t.to(device) for t in clouds(24, 6, 4, seed=i))
        step = make_step(z.requires_grad_(), y, n_classes=4, step=8 * i, epoch=i // 4)
        watch(i > 8)
        penalties = _charged(regularizer, step, how=i % 7)
        for penalty in penalties:
            (slope,) = torch.autograd.grad(penalty.loss, z)
            shown += [penalty.loss.detach(), slope, *penalty.gauges.values()]
        watch(False)
        if i in (12, 25):
            regularizer.end_epoch(step.progress)
    return shown


def _charged(regularizer: Regularizer, step: Step, *, how: int) -> list[Penalty]:
    """The usual step, or one in an unusual order."""
    if how != 2:
        regularizer.fit(replace(step, z=step.z.detach()))
    if how == 3:
        with torch.no_grad():
            step.z.mul_(1.1)  # after fit has seen it
    if how == 4:
        return []
    penalties = [regularizer(step)]
    if how == 5:  # again, before the gradient of the first is taken; others, of the same step
        other = replace(step, z=2 * step.z.flip(0))
        penalties += [regularizer(other), regularizer(step)]
    return penalties


def counted(regularizer: Regularizer) -> list[Tensor]:
    """What it has counted and remembered: no arithmetic that depends on an order."""
    return [t for name, t in sorted(regularizer.state_dict().items()) if not t.is_floating_point() or "held" in name]
