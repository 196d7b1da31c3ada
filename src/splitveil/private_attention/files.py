"""Files of a memory: safetensors and JSON, each written whole or not at all.

    write to a temporary file beside the target → flush to disk → rename over it

What cannot be read is told in one line.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from splitveil.check import UsageError

OWNER_ONLY, ANYONE_READS = 0o600, 0o644


def write_bytes(path: Path, content: bytes, *, mode: int = OWNER_ONLY) -> None:
    """Replace `path` by `content` at once: a reader sees the old file or the new one, also after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_tensors(path: Path, tensors: dict[str, Tensor], *, mode: int = OWNER_ONLY) -> None:
    write_bytes(path, save({name: tensor.contiguous() for name, tensor in tensors.items()}), mode=mode)


def write_json(path: Path, content: dict[str, Any], *, mode: int = OWNER_ONLY) -> None:
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    write_bytes(path, f"{text}\n".encode(), mode=mode)


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load(_read(path))
    except SafetensorError as error:
        raise UsageError(f"{path} is not a safetensors file ({error}); build the memory again") from error


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_read(path))
    except ValueError as error:
        raise UsageError(f"{path} is not JSON ({error}); build the memory again") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} must hold a JSON object, got {type(content).__name__}; build the memory again")
    return content


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}); is this a folder written by a memory's save?"
        ) from error


def _sync_folder(folder: Path) -> None:
    """A rename is on disk once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
