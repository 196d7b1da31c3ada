"""Send each coordinate as one of a few evenly spaced values.

    step = (high − low) / (levels − 1)          z_sent = low + step · round((clamp(z, low, high) − low) / step)

The gradient is straight-through: 1 inside [low, high], 0 outside. Rounding may move a coordinate away from zero, so a
clip before it bounds nothing after it; behind the noise it is post-processing.
"""

import math
from typing import final

from splitveil.check import UsageError, at_least
from splitveil.mechanisms.base import Mechanism, Noise
from splitveil.types import Features, Sent


@final
class Quantize(Mechanism):
    """Rounds to the nearest of `levels` values in [low, high]; the default range is a sigmoid bottleneck's."""

    name = "quantize"

    def __init__(self, *, levels: int, low: float = 0.0, high: float = 1.0) -> None:
        super().__init__()
        self.levels = int(at_least("quantize levels", levels, 2))
        if not -math.inf < low < high < math.inf:
            raise UsageError(f"quantize needs finite low < high, got low {low} and high {high}")
        self.low = low
        self.high = high

    def send(self, z: Features, noise: Noise) -> Sent:
        step = (self.high - self.low) / (self.levels - 1)
        inside = z.clamp(self.low, self.high)
        nearest = (self.low + step * ((inside - self.low) / step).round()).detach()
        return Sent(nearest + (inside - inside.detach()))  # the bracket is exactly 0 and carries the gradient

    def settings(self) -> dict[str, object]:
        return {"levels": self.levels, "low": self.low, "high": self.high}
