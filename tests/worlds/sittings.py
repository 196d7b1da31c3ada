"""Training runs of the command line in processes of their own: killed at random moments, and resumed.

A sitting is one process of a run. Warm sittings are forked from a server that has imported everything, and start at
once; cold ones start Python anew, as a user's do.
"""

import json
import multiprocessing
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from splitveil.training.checkpoint import NAME, PREVIOUS, SCRATCH

RUN = "run"
RESUME = ("train", f"--resume={RUN}", "-q")
UNTOLD = ("seconds", "commit")  # what may differ between two runs that are the same
MOMENTS = ("start", "run", "write")  # within the pause; within a pause after an epoch; while a file is written
PAUSE = 0.5  # seconds
POLL = 0.002  # seconds


@dataclass(frozen=True)
class Kill:
    """One kill: when it fell, how long the sitting had lasted, and what it left."""

    moment: str
    seconds: float
    epochs_kept: int  # in the newest checkpoint
    half_written: tuple[str, ...]


class Sitting:
    """One process of a run, its words on stdout and stderr kept in a file."""

    def __init__(self, process: Any, log: Path) -> None:
        self._process, self._log = process, log

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def is_over(self, within: float = 0.0) -> bool:
        """Whether it has ended, waiting so many seconds for it."""
        if isinstance(self._process, subprocess.Popen):
            try:
                self._process.wait(within)
            except subprocess.TimeoutExpired:
                return False
            return True
        self._process.join(within)
        return self._process.exitcode is not None

    def wait_for_an_epoch(self, run: Path) -> None:
        """Until one more epoch is kept, or it has ended."""
        before = epochs_kept(run)
        while epochs_kept(run) <= before and not self.is_over(POLL):
            pass

    def wait_for_a_write(self, run: Path) -> None:
        """Until a file is being written, or it has ended."""
        while not half_written(run) and not self.is_over(POLL / 4):
            pass

    def kill(self) -> None:
        self._process.kill()
        assert self.is_over(60)

    def __enter__(self) -> "Sitting":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing runs on when a test fails."""
        if not self.is_over():
            self.kill()

    def end(self, within: float = 120) -> tuple[int, str]:
        """Wait for the end: exit code and words."""
        with self:
            assert self.is_over(within), f"the run does not end:\n{self._log.read_text()}"
        is_cold = isinstance(self._process, subprocess.Popen)
        code = self._process.returncode if is_cold else self._process.exitcode
        return int(code), self._log.read_text()


Start = Callable[..., Sitting]


def write_images(path: Path) -> None:
    """Gray 16×16 images with a bright bar whose place is the class."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for role, n in (("train", 96), ("auxiliary", 16), ("selection", 16), ("victims", 16)):
        labels = np.arange(n) % 4
        images = rng.integers(0, 120, (n, 16, 16), dtype=np.uint8)
        images[np.arange(n), :, 4 * labels] += 100
        arrays |= {f"{role}_images": images, f"{role}_labels": labels}
    np.savez(path, **arrays)


def words(regularizers: Sequence[str], *, epochs: int, out: str = RUN) -> list[str]:
    """A short training run with these penalties."""
    penalties = [{"name": name, "weight": 1e-3} for name in regularizers]
    settings = {
        "data.source": "images.npz",
        "training.epochs": epochs,
        "training.batch_size": 32,
        "training.augment.crop": 1,
        "regularizers": json.dumps(penalties),
    }
    return ["train", *(f"--set={key}={value}" for key, value in settings.items()), "--device=cpu", f"--out={out}", "-q"]


def start_cold(arguments: Sequence[str], folder: Path) -> Sitting:
    """A sitting in a new Python."""
    log = folder / "words.txt"
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "splitveil.cli.main", *arguments],
            cwd=folder,
            stdout=file,
            stderr=file,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    return Sitting(process, log)


def start_warm(arguments: Sequence[str], folder: Path, *, largest_file: int | None = None) -> Sitting:
    """A sitting that is forked with everything imported; with `largest_file` bytes a disk that is then full."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["splitveil.cli.main", "splitveil.cli.train", "lightning_fabric"])
    process = server.Process(target=_sit, args=(list(arguments), str(folder), largest_file))
    process.start()
    return Sitting(process, folder / "words.txt")


def _sit(arguments: list[str], folder: str, largest_file: int | None) -> None:
    import warnings

    import torch

    from splitveil.cli.main import run

    os.chdir(folder)
    log = os.open("words.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    run(arguments)


def kill_and_resume(start: Start, arguments: Sequence[str], folder: Path, *, kills: int, seed: int) -> list[Kill]:
    """Kill a run so many times, and resume it after each but the last; fewer times if it ends before."""
    rng, run, seen = random.Random(seed), folder / RUN, list[Kill]()
    while len(seen) < kills:
        began = time.monotonic()
        moment = rng.choices(MOMENTS, weights=(1, 3, 2))[0]
        with start(RESUME if (run / "config.yaml").exists() else arguments, folder) as sitting:
            if moment != "start":
                sitting.wait_for_an_epoch(run)
            if moment == "write":
                sitting.wait_for_a_write(run)
            elif sitting.is_over(rng.uniform(0, PAUSE)):
                code, said = sitting.end()
                assert code == 0, said
                return seen
            sitting.kill()
        seen.append(Kill(moment, time.monotonic() - began, epochs_kept(run), half_written(run)))
    return seen


def epochs_kept(run: Path) -> int:
    """The epoch of the newest checkpoint, read without trusting it."""
    for path in (run / NAME, run / PREVIOUS):
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                return int(json.loads(json.loads(file.read(length))["__metadata__"]["state"])["epoch"])
        except (OSError, ValueError, KeyError):
            continue
    return 0


def half_written(run: Path) -> tuple[str, ...]:
    """Files being written now; after a kill, those it cut short."""
    try:
        return tuple(sorted(os.listdir(run / SCRATCH)))
    except FileNotFoundError:  # nothing is: the folder is there no longer than a file is written
        return ()


def differences(one: Path, other: Path) -> list[str]:
    """Where two finished runs differ: weights byte by byte, every tensor of the last checkpoint, metrics and result."""
    found = [
        name
        for name in ("model/encoder.safetensors", "model/head.safetensors")
        if (one / name).read_bytes() != (other / name).read_bytes()
    ]
    ours, theirs = load_file(one / NAME), load_file(other / NAME)
    found += sorted(ours.keys() ^ theirs.keys())
    found += [name for name in ours.keys() & theirs.keys() if ours[name].tobytes() != theirs[name].tobytes()]
    for name in ("metrics.jsonl", "result.json"):
        found += [f"{name} {key}" for key in _told(one / name).items() ^ _told(other / name).items()]
    return found


def _told(path: Path) -> dict[str, str]:
    """Every number of a JSON file or of a file of JSON lines, as text."""
    text = path.read_text()
    records = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else [json.loads(text)]
    return {f"{i}/{k}": json.dumps(v) for i, record in enumerate(records) for k, v in record.items() if k not in UNTOLD}
