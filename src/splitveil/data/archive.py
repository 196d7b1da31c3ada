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
        with existing(path).open("rb") as file:
            return _arrays(path, np.load(file, allow_pickle=False))
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError) as error:
        raise bad_file(path, f"is truncated or corrupt ({_first_line(error)})") from error
    except UsageError:
        raise
    except (ValueError, SyntaxError, TypeError) as error:  # what numpy raises for headers it cannot parse
        what = "is not an .npz of plain arrays, or is corrupt (pickled objects are refused)"
        raise bad_file(path, what, hint="save numbers with numpy.savez, or copy the file again") from error


def _arrays(path: Path, loaded: Any) -> Arrays:
    if not isinstance(loaded, np.lib.npyio.NpzFile):
        raise bad_file(path, "holds one bare array, not named ones", hint="save it with numpy.savez")
    arrays = {name: loaded[name] for name in loaded.files}
    strange = [name for name, value in arrays.items() if not isinstance(value, np.ndarray)]
    if strange:
        raise bad_file(path, f"its entry {strange[0]!r} is not an array", hint="save it with numpy.savez")
    return arrays


def expand(path: Path, stream: bytes) -> bytes:
    """The content of an xz stream found in `path`."""
    try:
        return lzma.decompress(stream)
    except (lzma.LZMAError, EOFError) as error:
        raise bad_file(path, f"its xz stream is truncated or corrupt ({_first_line(error)})") from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
