"""The variance τ below which a hinge is silent.

    τ = max(var_threshold · σ², 1e-8)                         σ² is all the noise added to one coordinate
    τ = max(that, quantile_q of the running spread)           adaptive: only the widest classes are charged

The running spread is one number a class, the mean variance over dimensions, followed with momentum. Since σ² counts
every noise a mechanism adds, more noise widens τ by itself.
"""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from splitveil.check import fraction, positive

LEAST = 1e-8  # τ of the notes when there is next to no noise


@final
class Threshold(nn.Module):
    """τ from σ², and from a quantile of the running spread of the classes where `quantile` is given."""

    running: Tensor
    seen: Tensor

    def __init__(self, *, var_threshold: float = 0.125, quantile: float | None = None, momentum: float = 0.99) -> None:
        super().__init__()
        self.var_threshold = positive("var_threshold", var_threshold)
        self.quantile = None if quantile is None else fraction("quantile", quantile)
        self.momentum = fraction("momentum", momentum)

    def build(self, n_classes: int, *, like: Tensor) -> None:
        """Make room for the running spread."""
        if self.quantile is not None:
            self.register_buffer("running", torch.zeros(n_classes, dtype=like.dtype, device=like.device))
            self.register_buffer("seen", torch.zeros(n_classes, dtype=like.dtype, device=like.device))

    def tau(self, noise_var: float) -> Tensor | float:
        """The threshold now."""
        fixed = max(self.var_threshold * noise_var, LEAST)
        if self.quantile is None:
            return fixed
        return _quantile(self.running, self.seen > 0, self.quantile).clamp_min(fixed)

    def observe(self, spread: Float[Tensor, "row"], label: Tensor, present: Float[Tensor, "row"]) -> None:
        """Follow the spread of the classes that are in this step."""
        if self.quantile is None:
            return
        present = present * spread.isfinite()
        old, first = self.running.index_select(0, label), self.seen.index_select(0, label) == 0
        new = torch.where(first, spread, self.momentum * old + (1 - self.momentum) * spread)
        # added as differences: rows that stand for no class share a label with one that does
        self.running.index_add_(0, label, torch.where(present > 0, new - old, 0.0))
        self.seen.index_add_(0, label, present)


def _quantile(values: Tensor, known: Tensor, q: float) -> Tensor:
    """Quantile of the known values, 0 without any; torch's own would copy q to the device in every step."""
    ordered = torch.where(known, values, torch.inf).sort().values
    place = q * (known.sum() - 1).clamp_min(0).to(values.dtype)
    low = ordered.gather(0, place.floor().long().view(1))
    high = ordered.gather(0, place.ceil().long().view(1))
    between = torch.lerp(low, high, (place - place.floor()).view(1))
    return torch.where(known.any(), between[0], 0.0)
