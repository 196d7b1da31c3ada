"""Two surrogates in one run: a light one first, a finer one later.

    epoch < at_epoch     the first is charged
    epoch ≥ at_epoch     the second is; it has been fitted since the epoch before

In that epoch the second's class gate learns the running statistics of M/B, and a running shutoff those of the
openings, so that neither has to be set by hand. The ready-made `staged()` gates the classes of its slots so
(`share: running`); its shutoff is off, as everywhere, until `shutoff: running` asks for it.
"""

from typing import final

import torch
from torch import Tensor

from splitveil.check import at_least
from splitveil.regularizers.base import Penalty, Progress, Regularizer, Step


@final
class Staged(Regularizer):
    """`first` until `at_epoch`, then `second`."""

    def __init__(self, first: Regularizer, second: Regularizer, *, at_epoch: int) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.at_epoch = int(at_least("at_epoch", at_epoch, 1))

    def forward(self, step: Step) -> Penalty:
        stage = self.first if step.progress.epoch < self.at_epoch else self.second
        penalty: Penalty = stage(step)
        return penalty

    def fit(self, step: Step) -> None:
        if step.progress.epoch < self.at_epoch:
            self.first.fit(step)
        if step.progress.epoch >= self.at_epoch - 1:
            self.second.fit(step)

    def broken_steps(self) -> Tensor | None:
        counts = [n for n in (self.first.broken_steps(), self.second.broken_steps()) if n is not None]
        return torch.stack(counts).sum() if counts else None

    def end_epoch(self, progress: Progress) -> None:
        if progress.epoch < self.at_epoch:
            self.first.end_epoch(progress)
        if progress.epoch >= self.at_epoch - 1:
            self.second.end_epoch(progress)
