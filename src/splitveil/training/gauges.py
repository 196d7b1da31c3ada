"""Means of what each step showed, collected without stalling the device.

    mean = Σ value / number of values            sums are taken every so many steps, of what has come since

Values stay tensors where they were made; they are read only when a mean is asked for. Sums are always taken at the same
steps, so a run that was stopped between two of them shows the same digits.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import final

import torch
from torch import Tensor


@final
class Gauges:
    """Running means by name. A gauge may be a number or a vector (one entry a class, say).

    Entries that are NaN are left out of a mean; with `keeps_nan` they make it NaN. Of several processes each counts its
    values as a `share` of a step, so that a run may go on with another number of them.
    """

    def __init__(self, *, keeps_nan: bool = False, share: float = 1.0) -> None:
        self._keeps_nan, self._share = keeps_nan, share
        self._pending: dict[str, list[Tensor]] = {}
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, Tensor] = {}

    def add(self, values: Mapping[str, Tensor]) -> None:
        """Remember one step's values; no arithmetic yet."""
        for name, value in values.items():
            self._pending.setdefault(name, []).append(value.detach())

    def fold(self) -> None:
        """Merge what is pending into the sums: a few operations a gauge, still without reading anything."""
        self._merge(share=self._share)

    def _merge(self, *, share: float) -> None:
        for name, values in self._pending.items():
            total, count = (part if share == 1 else part * share for part in self._summed(values))
            self._sums[name] = self._sums[name] + total if name in self._sums else total
            self._counts[name] = self._counts[name] + count if name in self._counts else count
        self._pending.clear()

    def _summed(self, values: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        stacked = torch.stack(list(values)).double()
        if self._keeps_nan:
            return stacked.sum(0), torch.full_like(stacked[0], len(values))
        return stacked.nan_to_num(0.0, torch.inf, -torch.inf).sum(0), (~stacked.isnan()).sum(0).double()

    def means(self) -> dict[str, float | list[float]]:
        """Mean of every gauge since the start; reads the device once a gauge."""
        self.fold()
        return {name: (total / self._counts[name]).tolist() for name, total in self._sums.items()}

    def sum(self, name: str) -> float:
        """Sum of a gauge that is a number, since the start; 0 if there was none. Reads the device."""
        self.fold()
        return float(self._sums[name]) if name in self._sums else 0.0

    def everywhere(self, total: Callable[[Tensor], Tensor]) -> "Gauges":
        """The same gauges over all processes; `total` sums a tensor over them. All must hold the same names."""
        self.fold()
        names = sorted(self._sums)
        if not names:
            return self
        kept = [part[name] for part in (self._sums, self._counts) for name in names]
        summed = total(torch.cat([tensor.flatten() for tensor in kept]))
        flat = torch.split(summed, [tensor.numel() for tensor in kept])
        shaped = [piece.reshape(tensor.shape) for piece, tensor in zip(flat, kept, strict=True)]
        merged = Gauges(keeps_nan=self._keeps_nan, share=self._share)
        merged._sums = dict(zip(names, shaped[: len(names)], strict=True))
        merged._counts = dict(zip(names, shaped[len(names) :], strict=True))
        return merged

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must keep."""
        kept = {f"pending/{name}": torch.stack(values) for name, values in self._pending.items()}
        kept |= {f"sum/{name}": total for name, total in self._sums.items()}
        return kept | {f"count/{name}": count for name, count in self._counts.items()}

    def restore(self, tensors: Mapping[str, Tensor], device: torch.device, *, is_mine: bool = True) -> None:
        """Go on from what `tensors` returned; where another process goes on with it, only take its names."""
        for key, kept in tensors.items():
            kind, name = key.split("/", 1)
            if kind == "pending":
                self._pending[name] = list(kept.to(device).unbind())
            else:
                (self._sums if kind == "sum" else self._counts)[name] = kept.to(device)
        if self._share != 1 or not is_mine:
            self._merge(share=1.0)  # what is pending was shown by the one process there was
        if not is_mine:
            self._sums = {name: torch.zeros_like(total) for name, total in self._sums.items()}
            self._counts = {name: torch.zeros_like(count) for name, count in self._counts.items()}
