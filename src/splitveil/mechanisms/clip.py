"""Pull every feature vector into a ball, so that two inputs can never be further apart than its diameter.

z_sent = z · min(1, C / ‖z‖_p)            p = 2 or 1, over all feature axes of one sample
"""

from dataclasses import replace
from typing import final

import torch

from splitveil.check import UsageError, positive
from splitveil.mechanisms.base import Mechanism, Noise
from splitveil.mechanisms.guarantee import Guarantee
from splitveil.types import Features, Sent

MARGIN = 2.0**-16  # of the radius, left free for the rounding of float32 norms up to about a million coordinates
TINY = 1e-30  # a row whose largest coordinate is smaller lies in any ball; keeps the division finite


@final
class Clip(Mechanism):
    """Scales down each sample whose norm exceeds `radius`.

    Guarantees: ‖z_sent‖ ≤ radius, measured without rounding, for every float input: NaN counts as 0 and ±inf as the
    largest float; a sample inside the ball (less a margin of 2⁻¹⁶ for rounding) passes bit for bit.
    """

    name = "clip"

    def __init__(self, *, radius: float, norm: int = 2) -> None:
        super().__init__()
        self.radius = positive("clip radius", radius, hint="use identity to send features as they are")
        if norm not in (1, 2):
            raise UsageError(f"clip norm must be 1 or 2, got {norm}; 2 goes with gaussian noise, 1 with laplace")
        self.norm = norm

    def send(self, z: Features, noise: Noise) -> Sent:
        flat = z.flatten(1).nan_to_num()
        peak = flat.detach().abs().amax(1, keepdim=True).clamp_min(TINY)  # squares of huge coordinates would overflow
        unit = flat / peak
        length = torch.linalg.vector_norm(unit, ord=self.norm, dim=1, keepdim=True).clamp_min(1.0)
        radius = self.radius * (1 - MARGIN)
        clipped = torch.where(length * peak <= radius, flat, unit * (radius / length))
        return Sent(clipped.reshape(z.shape))

    def follow(self, known: Guarantee) -> Guarantee:
        l2 = min(known.l2, self.radius)  # ‖z‖₂ ≤ ‖z‖₁, and scaling down raises no norm
        l1 = min(known.l1, self.radius) if self.norm == 1 else known.l1
        return replace(known, l2=l2, l1=l1)

    def settings(self) -> dict[str, object]:
        return {"radius": self.radius, "norm": self.norm}
