"""Push privacy as far as an accuracy the user names allows.

    log strength ← log strength + gain · min(1, (accuracy − floor)/slack)        after every epoch, within [least, most]
    loss         = strength · loss of the regularizer

Selection accuracy above the floor raises the strength, below it lowers it; a rise is at most a factor e^gain an epoch,
a fall is not slowed, so that a floor that was missed is soon kept again. The weight of the schedule still multiplies
the result. Also the ramp of the notes: start 0.1, most 0.3–0.5, the floor a little under the accuracy without penalty.
"""

import math
from typing import final

import torch
from torch import Tensor

from splitveil.check import UsageError, fraction, positive
from splitveil.regularizers.base import Penalty, Progress, Regularizer, Step

SLACK = 0.01  # accuracy: one percent above the floor is full speed
UNIT = 1e-9  # of the logarithm of the strength: far finer than a float32 weight


@final
class KeepAccuracy(Regularizer):
    """A regularizer whose strength follows the selection accuracy.

    Guarantees: the strength never leaves [least, most]; above the floor it does not fall, below it does not rise.
    """

    log_strength: Tensor  # in units of UNIT, as an integer: no cast of the module touches it
    strength: float  # what the loss is multiplied with now

    def __init__(
        self,
        inner: Regularizer,
        *,
        floor: float,
        start: float = 1.0,
        least: float = 1e-3,
        most: float = 1e3,
        gain: float = 0.3,
    ) -> None:
        super().__init__()
        self.inner, self.floor, self.gain = inner, fraction("floor", floor), positive("gain", gain)
        self.least, self.most = positive("least", least), positive("most", most)
        self.usual = inner.usual
        if not least <= start <= most:
            raise UsageError(f"start must lie between least = {least} and most = {most}, got {start}")
        self.register_buffer("log_strength", torch.tensor(round(math.log(start) / UNIT)))
        _read_strength(self)
        self.register_load_state_dict_post_hook(_read_strength)  # type: ignore[no-untyped-call]

    def forward(self, step: Step) -> Penalty:
        penalty: Penalty = self.inner(step)
        shown = penalty.loss.detach().new_full((), self.strength)
        return Penalty(self.strength * penalty.loss, {**penalty.gauges, "strength": shown})

    def fit(self, step: Step) -> None:
        self.inner.fit(step)

    def broken_steps(self) -> Tensor | None:
        return self.inner.broken_steps()

    def end_epoch(self, progress: Progress) -> None:
        self.inner.end_epoch(progress)
        if progress.selection_accuracy is None:
            return
        margin = (progress.selection_accuracy - self.floor) / SLACK
        moved = int(self.log_strength) * UNIT + self.gain * min(1.0, margin)
        kept = min(math.log(self.most), max(math.log(self.least), moved))
        self.log_strength.fill_(round(kept / UNIT))
        _read_strength(self)


def _read_strength(control: KeepAccuracy, keys: object = None) -> None:
    control.strength = math.exp(int(control.log_strength) * UNIT)
