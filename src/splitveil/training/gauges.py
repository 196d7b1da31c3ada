"""Means of what each step showed, collected without stalling the device.

Values stay tensors where they were made; they are read only when a mean is asked for.
"""

from collections.abc import Mapping

import torch
from torch import Tensor


class Gauges:
    """Running means by name. A gauge may be a number or a vector (one entry a class, say); NaN entries are left out."""

    def __init__(self) -> None:
        self._pending: dict[str, list[Tensor]] = {}
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, Tensor] = {}

    def add(self, values: Mapping[str, Tensor]) -> None:
        """Remember one step's values; no arithmetic yet."""
        for name, value in values.items():
            self._pending.setdefault(name, []).append(value.detach())

    def fold(self) -> None:
        """Merge what is pending into the sums: a few operations a gauge, still without reading anything."""
        for name, values in self._pending.items():
            stacked = torch.stack(values).double()
            known = ~stacked.isnan()
            total, count = stacked.nan_to_num(0.0, torch.inf, -torch.inf).sum(0), known.sum(0)
            self._sums[name] = self._sums[name] + total if name in self._sums else total
            self._counts[name] = self._counts[name] + count if name in self._counts else count
        self._pending.clear()

    def means(self) -> dict[str, float | list[float]]:
        """Mean of every gauge since the start; reads the device once a gauge."""
        self.fold()
        return {name: (total / self._counts[name]).tolist() for name, total in self._sums.items()}

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must keep."""
        self.fold()
        return {f"sum/{n}": v for n, v in self._sums.items()} | {f"count/{n}": v for n, v in self._counts.items()}

    def restore(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        """Go on from what `tensors` returned."""
        for key, value in tensors.items():
            kind, name = key.split("/", 1)
            (self._sums if kind == "sum" else self._counts)[name] = value.to(device)
