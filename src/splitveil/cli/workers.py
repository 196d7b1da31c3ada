"""`splitveil attack --workers N`: the same command in N processes, each attack played by one of them.

This process is one of them: it shows the way and puts the result together. The others are the command itself with
`--helper`; they end when no attack is left, or at their next check when this process is gone.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch
from torch import nn

from splitveil.cli.runs import Run, device_of
from splitveil.data import ImageSet
from splitveil.evaluation import Claims, Progress, Suite, TimeUp, Update, prepare, take_part
from splitveil.split import Client

PATIENCE = 5.0  # seconds that a helper has to go when it is told to


@dataclass(frozen=True)
class Team:
    """How many processes, and the words that make another of them."""

    n: int
    words: tuple[str, ...]


def play_together(
    team: Team,
    client: Client,
    suite: str | Suite,
    data: ImageSet,
    directory: Path,
    *,
    seeds: Sequence[int],
    progress: Progress,
    head: nn.Module | None,
    time_budget: float | None,
) -> None:
    """Play every attack that is not finished in `directory`, among all processes of the team."""
    claims, began = Claims(directory), time.monotonic()
    claims.clear()
    prepare(client, suite, data, out=directory, head=head)
    on_cpu = next(iter(client.state_dict().values())).device.type == "cpu"
    with Helpers(team.n - 1, team.words, on_cpu=on_cpu) as helpers:
        take_part(
            client, suite, data, out=directory, seeds=seeds, progress=progress, head=head, time_budget=time_budget
        )
        if not helpers.are_done(None if time_budget is None else began + time_budget):
            raise TimeUp(
                "the time budget is used up; what is finished is kept, the same command goes on with the rest"
            )
    claims.close()


def help_with(leader: int, opened: Run, suite: Suite, *, folder: str, seeds: Sequence[int]) -> None:
    """Take part in what process `leader` has begun, for as long as it is there."""
    if device_of(opened.split).type == "cpu" and "OMP_NUM_THREADS" in os.environ:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

    def while_wanted(update: Update) -> None:
        if os.getppid() != leader:
            raise KeyboardInterrupt

    directory = opened.directory / "attacks" / folder
    client, head = opened.split.client, opened.split.server
    take_part(client, suite, opened.data, out=directory, seeds=seeds, progress=while_wanted, head=head)


class Helpers:
    """Processes that take part, as long as the block lasts."""

    def __init__(self, n: int, words: Sequence[str], *, on_cpu: bool) -> None:
        self._command = [sys.executable, "-m", "splitveil.cli.main", *words, "--helper", str(os.getpid())]
        self._n, self._threads = n, max(1, (os.cpu_count() or 1) // (n + 1)) if on_cpu else None
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Helpers":
        environment = dict(os.environ)
        if self._threads is not None:
            torch.set_num_threads(self._threads)
            environment["OMP_NUM_THREADS"] = str(self._threads)
        nowhere = subprocess.DEVNULL
        for _ in range(self._n):
            self._running.append(
                subprocess.Popen(self._command, env=environment, stdin=nowhere, stdout=nowhere, stderr=nowhere)
            )
        return self

    def are_done(self, until: float | None) -> bool:
        """Wait for all, or until this time. One that fails is not missed: this process plays what it claimed."""
        try:
            for process in self._running:
                process.wait(None if until is None else max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
