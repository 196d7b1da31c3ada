"""What a trial took: seconds and the peak of memory, over all processes that worked on it.

    <state>.spent     what was spent so far, beside the fit in flight; gone with it when the trial is finished

The peak is the device's, or the process's on a CPU: Linux forgets it on demand (clear_refs), so that a trial does not
answer for the one before, nor an attack for who scores and judges its answers (`aside`). Elsewhere it is the highest
since the process began, and said to be `at most`.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import final

import torch

from splitveil import fitting
from splitveil.attacks import Watch
from splitveil.fitting import Check
from splitveil.writing import drop, write_text

MEGABYTE = 2**20
FORGET, PEAK = "5", "VmHWM:"  # what Linux is told, and what it calls the peak of a process


@dataclass(frozen=True)
class Spent:
    """Time and memory."""

    seconds: float
    peak_memory_mb: float | None  # None: not known here
    is_at_most: bool = False  # of the process since it began

    def __add__(self, other: "Spent") -> "Spent":
        """One after the other; the peak of both is known where each is."""
        peaks = [each.peak_memory_mb for each in (self, other) if each.peak_memory_mb is not None]
        peak = max(peaks) if len(peaks) == 2 else None
        return Spent(self.seconds + other.seconds, peak, self.is_at_most or other.is_at_most)

    def to_json(self) -> str:
        """As JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Spent | None":
        """What `to_json` wrote; None where the text is damaged."""
        try:
            words = json.loads(text)
            peak = words["peak_memory_mb"]
            return cls(float(words["seconds"]), None if peak is None else float(peak), bool(words["is_at_most"]))
        except (ValueError, KeyError, TypeError):
            return None


NOTHING = Spent(0.0, 0.0)


@final
class Gauge:
    """Runs while its block does; what is kept beside `state` is added, and kept again when the block is cut short."""

    def __init__(self, device: torch.device, state: Path | None) -> None:
        self._device = device
        self._place = None if state is None else state.with_name(f"{state.name}.spent")
        self._before = _read(self._place)
        self._peak: float | None = None  # before what was last put aside

    def __enter__(self) -> "Gauge":
        self._was_reset = reset_peak(self._device)
        self._began = self._kept = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self._keep()

    def watched(self, watch: Watch | None) -> Watch:
        """`watch`, and what was spent is kept now and then: a kill forgets as little of it as of the fit."""

        def told(check: Check) -> None:
            if time.monotonic() - self._kept >= fitting.SAVE_EVERY:
                self._keep()
            if watch is not None:
                watch(check)

        return told

    @contextmanager
    def aside(self) -> Iterator["Gauge"]:
        """What is not the trial's: neither its time nor its peak is counted here, but by a gauge of its own."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # what the trial has asked for is the trial's
        self._peak, left = self._highest(), time.monotonic()
        try:
            with Gauge(self._device, None) as apart:
                yield apart
        finally:
            self._was_reset = reset_peak(self._device) and self._was_reset
            self._began += time.monotonic() - left

    def read(self) -> Spent:
        """So far."""
        seconds = self._before.seconds + time.monotonic() - self._began
        return Spent(seconds, self._highest(), self._before.is_at_most or not self._was_reset)

    def forget(self) -> None:
        """Remove what was kept: all of it is in what was read."""
        if self._place is not None:
            drop(self._place)

    def _highest(self) -> float | None:
        peaks = (self._before.peak_memory_mb, self._peak, peak_mb(self._device))
        return max((peak for peak in peaks if peak is not None), default=None)

    def _keep(self) -> None:
        self._kept = time.monotonic()
        if self._place is not None:
            write_text(self._place, self.read().to_json() + "\n")


def reset_peak(device: torch.device) -> bool:
    """Forget the peak; whether that is possible here."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return True
    try:
        Path("/proc/self/clear_refs").write_text(FORGET)
    except OSError:  # another operating system, or a machine that hides it
        return False
    return True


def peak_mb(device: torch.device) -> float | None:
    """Of the device, or of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MEGABYTE
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(PEAK)) / 1024
    except (OSError, StopIteration, ValueError):
        return _peak_of_all_mb()


def _peak_of_all_mb() -> float | None:
    """Since the process began."""
    try:
        import resource
    except ImportError:  # not on this operating system
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / MEGABYTE if sys.platform == "darwin" else peak / 1024  # kilobytes on Linux


def _read(place: Path | None) -> Spent:
    """What was kept; nothing where there is no such file, or only a damaged one."""
    try:
        found = Spent.from_json(place.read_text(encoding="utf-8")) if place is not None else None
    except (OSError, ValueError):
        found = None
    return Spent(0.0, None) if found is None else found
