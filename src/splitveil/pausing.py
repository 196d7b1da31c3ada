"""Who may end a long fit between two of its checks.

    with pausing(ask): …fit…        `ask` is called between steps; what it raises ends the fit, which is kept first

A fit is asked only after it has run for `UNASKED` seconds: however little time there is, each call gets somewhere.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

UNASKED = 5.0  # seconds

Ask = Callable[[], None]
_asked: ContextVar[tuple[Ask, ...]] = ContextVar("asked", default=())


@contextmanager
def pausing(ask: Ask) -> Iterator[None]:
    """Let `ask` end what runs in the block, beside those who may already."""
    before = _asked.set((*_asked.get(), ask))
    try:
        yield
    finally:
        _asked.reset(before)


def pause(seconds: float) -> None:
    """Ask everyone, of something that can be kept now and has run for so long."""
    if seconds >= UNASKED:
        for ask in _asked.get():
            ask()
