"""One command at a time in a folder: two would clear each other's claims and take each other's place.

The operating system holds the lock for the process, and lets go of it when the process ends, however it ends.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from splitveil.check import UsageError

NAME = ".lock"


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Make `folder` and hold it, or refuse in one line; where there are no such locks, hold nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # not on this operating system
        yield
        return
    with (folder / NAME).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{folder}: another command is at work in this folder; wait until it has ended, or stop it, "
                "and call this one again"
            ) from None
        except OSError:  # a file system without locks
            pass
        yield
