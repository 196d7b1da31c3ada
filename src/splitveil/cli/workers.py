"""`splitveil attack --workers N`: the same command in N processes, each attack played by one of them.

This process is one of them: it shows the way and puts the result together. The others are the command itself with
`--helper`; they end when no attack is left, at the deadline, or when this process is gone, and keep their fit.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypedDict

import torch
from torch import nn

from splitveil.cli.deadline import Deadline
from splitveil.cli.display import err
from splitveil.cli.runs import Run
from splitveil.data import ImageSet
from splitveil.evaluation import Claims, Progress, Suite, TimeUp, Update, prepare, take_part
from splitveil.pausing import pausing
from splitveil.split import Client, device_of
from splitveil.training.watch import StopWhen
from splitveil.writing import drop

THREADS = "OMP_NUM_THREADS"  # who has set it knows better
PATIENCE = 15.0  # seconds that a helper has to keep its fit and go, when it is told to
GRACE = 30.0  # seconds after the deadline, which helpers know of, before they are told
POLL = 0.5  # seconds between two looks at them


@dataclass(frozen=True)
class Team:
    """How many processes, and the words that make another of them."""

    n: int
    words: tuple[str, ...]


class Words(TypedDict):
    """What all who play one evaluation are told."""

    out: Path
    seeds: Sequence[int]
    head: nn.Module | None
    progress: Progress


def play_together(
    team: Team, client: Client, suite: str | Suite, data: ImageSet, words: Words, *, deadline: Deadline
) -> None:
    """Play every attack that is not finished in the folder, among all processes of the team."""
    claims = Claims(words["out"])
    claims.clear()  # of a command that was killed
    try:
        prepare(client, suite, data, **words, time_budget=deadline.left)
        on_cpu = (device_of(client) or torch.device("cpu")).type == "cpu"
        with Helpers(team, words["out"], deadline, on_cpu=on_cpu) as helpers:
            standing = take_part(client, suite, data, **words, time_budget=deadline.left)
            while n_left := helpers.n_running:
                n_done, total = standing()
                words["progress"](Update(n_done, total, f"waiting for {n_left} more at work", words["seeds"][0]))
                if deadline.is_over and n_done < total:
                    raise TimeUp.after(n_done, total)
                if deadline.is_over:
                    break
                time.sleep(POLL)
    finally:
        claims.close()


def help_with(
    leader: int, opened: Run, suite: Suite, *, directory: Path, seeds: Sequence[int], deadline: Deadline
) -> None:
    """Take part in what process `leader` has begun, for as long as it is there."""
    with StopWhen(None) as stop:

        def ask() -> None:
            if os.getppid() != leader or stop.reason() is not None:
                raise KeyboardInterrupt

        words = Words(out=directory, seeds=seeds, head=opened.split.server, progress=lambda update: ask())
        with pausing(ask), suppress(TimeUp):
            take_part(opened.split.client, suite, opened.data, **words, time_budget=deadline.left)


class Helpers:
    """Processes that take part, as long as the block lasts; what each says goes to a file in the folder."""

    def __init__(self, team: Team, folder: Path, deadline: Deadline, *, on_cpu: bool) -> None:
        until = [] if deadline.moment is None else ["--until", repr(deadline.moment)]
        self._command = [sys.executable, "-m", "splitveil.cli.main", *team.words, "--helper", str(os.getpid()), *until]
        self._logs = [folder / f"helper-{i}.log" for i in range(1, team.n)]
        self._running: list[subprocess.Popen[bytes]] = []
        self._threads = torch.get_num_threads()
        self._each = max(1, (os.cpu_count() or 1) // team.n) if on_cpu and THREADS not in os.environ else None

    def __enter__(self) -> "Helpers":
        environment = dict(os.environ)
        if self._each is not None:
            torch.set_num_threads(self._each)
            environment[THREADS] = str(self._each)
        nowhere = subprocess.DEVNULL
        for log in self._logs:
            with log.open("wb") as said:  # in a session of their own, so that Ctrl-C is heard by this process alone
                self._running.append(
                    subprocess.Popen(
                        self._command,
                        env=environment,
                        stdin=nowhere,
                        stdout=nowhere,
                        stderr=said,
                        start_new_session=True,
                    )
                )
        return self

    @property
    def n_running(self) -> int:
        """How many have not ended."""
        return sum(process.poll() is None for process in self._running)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None and issubclass(kind, TimeUp):
            self._wait(GRACE)
        told = [process.poll() is None for process in self._running]
        for process in self._running:
            process.terminate()
        self._wait(PATIENCE)
        for process in self._running:
            process.kill()
            process.wait()
        torch.set_num_threads(self._threads)
        for i, (process, log) in enumerate(zip(self._running, self._logs, strict=True)):
            if told[i] or not process.returncode:
                drop(log)
            else:
                err().print(
                    f"a helper ended with code {process.returncode}, see {log}; this process plays what it had begun",
                    markup=False,
                    soft_wrap=True,
                )

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self.n_running and time.monotonic() < until:
            time.sleep(POLL / 10)
