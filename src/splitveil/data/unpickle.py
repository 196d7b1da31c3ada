"""Read the pickles of the official CIFAR files without running them.

A pickle is a program that names functions and calls them. Here the few names that those files use stand for inert
records, and any other name is refused: nothing of a file is ever looked up, imported or called.

    numpy.core.multiarray._reconstruct, numpy.ndarray, numpy.dtype   →   shape, type and bytes, checked, then an array
"""

import io
import math
import pickle
import pickletools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitveil.data.archive import bad_file

NUMBER_TYPES = frozenset({"u1", "i1", "i2", "i4", "i8"})
# what the pickle machine raises on a stream that is cut off or makes no sense
NONSENSE = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    OverflowError,
    MemoryError,
    RecursionError,
)


class _Kind:
    """Stands for numpy.dtype: a type code and, once told, a byte order."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code = _text(code)
        self.order = "|"
        if self.code not in NUMBER_TYPES:
            raise pickle.UnpicklingError(f"arrays of type {self.code!r} are refused")

    def __setstate__(self, state: Any) -> None:
        self.order = _text(state[1])
        if self.order not in {"|", "<", ">", "="}:
            raise pickle.UnpicklingError("an array has no sensible byte order")


class _Array:
    """Stands for an array under construction."""

    value: NDArray[Any] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, is_fortran, content = state
        if not isinstance(kind, _Kind) or is_fortran or not all(isinstance(n, int) and n >= 0 for n in shape):
            raise pickle.UnpicklingError("an array is described in an unknown way")
        if isinstance(content, str):
            content = content.encode("latin-1")  # how Python 3 writes bytes in protocol 2
        flat = np.frombuffer(content, f"{kind.order}{kind.code}".replace("|", ""))
        if flat.size != math.prod(shape):
            raise pickle.UnpicklingError(f"an array of shape {tuple(shape)} has {flat.size} numbers")
        self.value = flat.reshape(shape)


class _NdArray:
    """Stands for the class numpy.ndarray, which the files only mention."""


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _latin(text: Any, encoding: Any) -> bytes:
    """Stands for _codecs.encode, with which Python 3 writes bytes in protocol 2."""
    if _text(encoding) not in {"latin1", "latin-1"}:
        raise pickle.UnpicklingError("text in an unknown encoding")
    return str(text).encode("latin-1")


STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _NdArray,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _latin,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in STAND_INS:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is refused")
        return STAND_INS[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to something outside itself")


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle: text keys; values are numbers, text, lists and arrays. Anything else is refused."""
    try:
        stream = path.read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # what a damaged escape gives: the damage is told below
            _check_memo(stream)
            content = _plain(_Reader(io.BytesIO(stream), encoding="latin-1").load())
    except OSError as error:
        raise bad_file(path, f"cannot be read ({error.strerror})") from error
    except NONSENSE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise bad_file(path, f"is truncated, corrupt or no plain pickle ({reason})") from error
    if not isinstance(content, dict):
        raise bad_file(path, f"holds a {type(content).__name__}, wanted a dictionary")
    return content


def _check_memo(stream: bytes) -> None:
    """Refuse a memo place beyond the number of steps: the machine would set aside memory up to it."""
    for step, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        if opcode.name in {"PUT", "BINPUT", "LONG_BINPUT"} and int(argument or 0) > step:
            raise pickle.UnpicklingError("it asks for more memory than it can use")


def _plain(value: Any) -> Any:
    """The value with stand-ins replaced by what they stand for, and keys as text."""
    match value:
        case _Array(value=array) if array is not None:
            return array
        case dict():
            return {_text(key): _plain(item) for key, item in value.items()}
        case list():
            return [_plain(item) for item in value]
        case bytes():
            return value.decode("latin-1")
        case str() | int() | float() | None:
            return value
        case _:
            raise pickle.UnpicklingError(f"it holds a {type(value).__name__}, which is refused")


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
