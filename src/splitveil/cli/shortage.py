"""What the machine refuses: a full disk, an unreadable file, memory that is not there. One line each."""

import errno
import re

IN_THE_WAY = {  # what to do where a file cannot be written
    errno.EROFS: "copy the run to a place that can be written, or name one",
    errno.EACCES: "give yourself the right to it, or name another place",
    errno.EPERM: "give yourself the right to it, or name another place",
    errno.ENOTDIR: "a file stands where a folder is needed; move it away",
    errno.ENAMETOOLONG: "name a shorter place",
}
TOO_LARGE = ("out of memory", "not enough memory", "can't allocate memory", "storage size calculation overflowed")
TO_LOWER = (
    "lower training.batch_size or model.bottleneck.channels, data.decoding.memory for image files, "
    "--workers of attack, or --rows, --cells and --degree of memory"
)


def told(error: Exception) -> str:
    """The line for an error of the machine; any other error is raised again.

    torch has no type of its own for memory that the CPU lacks: it is a RuntimeError that only its text tells apart.
    """
    if isinstance(error, OSError):
        advice = IN_THE_WAY.get(error.errno or 0)
        return f"{error.filename}: {error.strerror}; {advice}" if advice and error.filename else str(error)
    if not isinstance(error, MemoryError) and not any(words in str(error).lower() for words in TOO_LARGE):
        raise error
    asked = re.search(r"tried to allocate ([\d.]+ \w+)", str(error), re.IGNORECASE)
    return f"out of memory{f' ({asked[1]} were asked for at once)' if asked else ''}; {TO_LOWER}"
