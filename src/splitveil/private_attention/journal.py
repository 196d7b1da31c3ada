"""A stream's state on disk: what makes a tick final.

    stream.json                 settings and the salt of unit digests; written once
    tick-000012.safetensors     exact increment, what was published, units seen: written whole, before publication

A tick is published after its file is on disk, and is read back from that file after a crash, never drawn again. The
folder holds exact sums, so it is as private as the rows; its files are readable by their owner only.
"""

import os
from pathlib import Path
from typing import Any

from torch import Tensor

from splitveil.check import RunError, UsageError
from splitveil.private_attention.files import read_json, read_tensors, write_json, write_tensors

SETTINGS, LOCK = "stream.json", "stream.lock"


class Journal:
    """One writer's hold on a stream's folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._lock = _lock(folder / LOCK)

    def settings(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """The settings on disk, written now if this is a new stream; they must be the wanted ones but for the salt."""
        path = self._folder / SETTINGS
        if not path.exists():
            write_json(path, wanted)
            return wanted
        found = read_json(path)
        if found | {"salt": None} != wanted | {"salt": None}:
            differs = sorted(name for name in wanted.keys() | found.keys() if found.get(name) != wanted.get(name))
            names = ", ".join(name for name in differs if name != "salt")
            raise UsageError(
                f"{self._folder} holds a stream with other settings ({names}); use the same or another folder"
            )
        return found

    def write(self, tick: int, tensors: dict[str, Tensor]) -> None:
        """Make tick number `tick` final."""
        path = self._path(tick)
        if path.exists():
            raise RunError(f"{path} exists: this tick is already final; resume the stream from its folder")
        write_tensors(path, tensors)

    def read(self) -> list[dict[str, Tensor]]:
        """Every final tick, in order."""
        ticks: list[dict[str, Tensor]] = []
        while self._path(len(ticks)).exists():
            ticks.append(read_tensors(self._path(len(ticks))))
        return ticks

    def close(self) -> None:
        """Let another process take the folder."""
        os.close(self._lock)

    def _path(self, tick: int) -> Path:
        return self._folder / f"tick-{tick:06d}.safetensors"


def _lock(path: Path) -> int:
    """An exclusive lock that the system drops when the process ends, however it ends."""
    import fcntl

    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise UsageError(
            f"{path.parent} is in use by another stream; two writers could publish a tick twice"
        ) from error
    return descriptor
