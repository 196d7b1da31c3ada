"""Go through many pieces once, so that an attack without a fit shows how far it is and goes on where it was stopped.

    found_i = add(found_{i−1}, piece i),      i = 1 … n

What is found is kept beside the fit now and then, when it is complete, and when whoever watches ends it. Nothing waits
for the device but what is kept.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import final

from splitveil import fitting
from splitveil.attacks.base import Course
from splitveil.attacks.descent import clock
from splitveil.attacks.keeping import Found, beside
from splitveil.fitting import Check
from splitveil.metrics import mse
from splitveil.pausing import pause
from splitveil.types import Images
from splitveil.writing import read_tensors, write_tensors

TELL_EVERY = 8  # pieces between two checks


@final
class Gathering:
    """The pieces of one attack, told to its watcher with the best error on selection images that is known so far."""

    def __init__(self, course: Course, score: float) -> None:
        self._course, self.score = course, score
        self._seconds, self._saved, self._step = clock(), time.monotonic(), 0

    @classmethod
    def before(cls, course: Course, x: Images) -> "Gathering":
        """Nothing is learned yet: of selection images `x`, the error of their mean is known."""
        return cls(course, mse(x, x.mean(0, keepdim=True).expand_as(x)).mean().item())

    def gather(self, name: str, n: int, found: Found, add: Callable[[int], None], *, tell: int = TELL_EVERY) -> None:
        """Call `add` with 0 … n − 1; it changes the tensors of `found` in place, which are kept under `name`.

        Guarantees: stopped and called again it ends with the same numbers, and no piece that was kept is asked for
        twice; every `tell` pieces and at the last one the watcher is told, and between them whoever may pause a fit.
        """
        place = beside(self._course.state, name)
        begun = _load(place, found)
        self._step += begun
        for i in range(begun, n):
            add(i)
            self._step += 1
            try:
                self.tell() if (i + 1) % tell == 0 or i + 1 == n else pause(self._seconds())
            except BaseException:  # whoever watches ends it here: nothing of it is lost
                self._save(place, found, i + 1, now=True)
                raise
            self._save(place, found, i + 1, now=i + 1 == n)

    def tell(self) -> None:
        """Tell the watcher how far it is."""
        if self._course.watch is not None:
            self._course.watch(Check(self._step, 0.0, self.score, self._seconds()))

    def _save(self, place: Path | None, found: Found, done: int, *, now: bool) -> None:
        if place is None or (not now and time.monotonic() - self._saved < fitting.SAVE_EVERY):
            return
        write_tensors(place, found, {"done": str(done)})
        self._saved = time.monotonic()


def _load(place: Path | None, found: Found) -> int:
    """Take up what was kept, into the same memory; the number of pieces that are in it."""
    kept = None if place is None else read_tensors(place)
    if kept is None:
        return 0
    for name, value in kept[0].items():
        found[name].copy_(value)
    return int(kept[1]["done"])
