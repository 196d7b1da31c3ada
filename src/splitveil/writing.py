"""Files that are whole or not there.

    with replacing(path) as fresh: write to `fresh`          a killed write leaves what was at `path` before
    write_tensors(path, tensors)  →  read_tensors(path)      a damaged file is removed, as if it had never been written

What is written reaches the disk before it takes its place, so a power cut leaves the old file or the new one. Each
process and thread writes under a name of its own; what a kill leaves of it is swept up by the next write of that file.
"""

import glob
import os
import re
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from platform import node
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from splitveil.check import RunError

if TYPE_CHECKING:  # text files are written without waiting for torch
    import torch

NEXT = "free some space and run the same command again"
ABANDONED = 3600.0  # seconds after which a half-written file is nobody's, wherever its writer was
DAMAGES = (SafetensorError, OSError, KeyError, TypeError, ValueError)  # what reading a damaged file may raise


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path`, with its suffix; what is written there takes its place when the block ends well.

    Guarantees: nothing is left beside `path`; a disk that refuses is a one-line `RunError`.
    """
    fresh = path.with_name(f"{path.stem}{_mark()}{os.getpid()}-{threading.get_native_id()}{path.suffix}")
    try:
        _sweep(path)
        yield fresh
        flush(fresh)
        os.replace(fresh, path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot write {path}: {reason(error)}; {NEXT}") from None
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)


def _mark() -> str:
    """What the name of a half-written file has after the stem, before the process: this machine."""
    return f".part-{zlib.crc32(node().encode()):08x}-"


def _sweep(path: Path) -> None:
    """Remove halves of `path` that nobody writes any more."""
    name = f"{glob.escape(path.stem)}.part-*{glob.escape(path.suffix)}"
    for half in path.parent.glob(name):
        mine = half.name.removeprefix(f"{path.stem}{_mark()}")
        process = mine.partition("-")[0]
        is_gone = process.isdecimal() and mine != half.name and not _is_running(int(process))
        with suppress(OSError):
            if is_gone or time.time() - half.stat().st_mtime > ABANDONED:
                half.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    """Whether there is such a process here; where that cannot be asked, there may be."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def write_text(path: Path, text: str) -> None:
    """Replace a small file at once."""
    with replacing(path) as fresh:
        fresh.write_text(text, encoding="utf-8")


def write_tensors(path: Path, tensors: "Mapping[str, torch.Tensor]", words: Mapping[str, str] | None = None) -> None:
    """Replace a safetensors file at once; `words` are kept beside the tensors."""
    from safetensors.torch import save_file

    with replacing(path) as fresh:
        save_file({name: value.contiguous() for name, value in tensors.items()}, fresh, dict(words or {}))


def read_tensors(
    path: Path, *, device: "torch.device | str" = "cpu"
) -> "tuple[dict[str, torch.Tensor], dict[str, str]] | None":
    """Tensors and words that `write_tensors` wrote; None where there is no such file, or only a damaged one."""
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except DAMAGES:
        drop(path)
        return None


def drop(path: Path) -> None:
    """Remove a file, if it is there and may be removed."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until a file, or a directory's list of them, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def reason(error: OSError | SafetensorError) -> str:
    """What the operating system said; safetensors wraps it in words of its own."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    found = re.search(r"I/O error: (.+?) \(os error", str(error)) or re.search(r'message: "(.+?)"', str(error))
    return found.group(1) if found else str(error)
