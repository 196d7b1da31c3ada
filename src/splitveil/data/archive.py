"""Numpy archives opened without pickle, and one line for every way they can be bad."""

import lzma
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitveil.check import UsageError

Array = NDArray[Any]  # of whatever the file holds
Arrays = dict[str, Array]

ANOTHER_COPY = "copy or download the file again"


def bad_file(path: Path, what: str, *, hint: str = ANOTHER_COPY) -> UsageError:
    """The error for a file that cannot be used: which file, what is wrong, how to get a good one."""
    return UsageError(f"{path}: {what}; {hint}")


def existing(path: Path, *, hint: str = "check the path") -> Path:
    """Return `path` if it is a file that is there."""
    if not path.exists():
        raise bad_file(path, "no such file", hint=hint)
    if not path.is_file():
        raise bad_file(path, "is not a file", hint=hint)
    return path


def load_arrays(path: Path) -> Arrays:
    """All arrays of an .npz file. Pickled objects are refused, never run."""
    try:
        with np.load(existing(path), allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise bad_file(path, "holds one bare array, not named ones", hint="save it with numpy.savez")
            return {name: archive[name] for name in archive.files}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise bad_file(path, f"is truncated or corrupt ({_first_line(error)})") from error
    except ValueError as error:
        if isinstance(error, UsageError):
            raise
        raise bad_file(
            path, "is not an .npz of plain arrays (pickled objects are refused)", hint="save numbers with numpy.savez"
        ) from error


def expand(path: Path, stream: bytes) -> bytes:
    """The content of an xz stream found in `path`."""
    try:
        return lzma.decompress(stream)
    except (lzma.LZMAError, EOFError) as error:
        raise bad_file(path, f"its xz stream is truncated or corrupt ({_first_line(error)})") from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
