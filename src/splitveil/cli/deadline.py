"""When a command must end: one moment, settled once, that every part of it is told."""

import time
from dataclasses import dataclass
from typing import final

LEAST = 1e-3  # seconds that are left when none are: nothing new is begun then


@final
@dataclass(frozen=True)
class Deadline:
    """A moment on the clock of this process; None: never."""

    at: float | None = None

    @classmethod
    def after(cls, seconds: float | None) -> "Deadline":
        """So many seconds from now."""
        return cls(None if seconds is None else time.monotonic() + seconds)

    @classmethod
    def of(cls, moment: float | None) -> "Deadline":
        """A moment that another process has handed over."""
        return cls.after(None if moment is None else moment - time.time())

    @property
    def moment(self) -> float | None:
        """On the clock that all processes share."""
        return None if self.at is None else time.time() + self.at - time.monotonic()

    @property
    def left(self) -> float | None:
        """Seconds, always above zero."""
        return None if self.at is None else max(LEAST, self.at - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether it has passed."""
        return self.at is not None and time.monotonic() >= self.at
