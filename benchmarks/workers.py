"""Workers side by side: tasks are claimed one by one, each result is a file, and all ends when the time is up.

A task has a `slug`, which names its file. What has a file is not done again; what fails is left out for this run.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from splitveil.cli.runs import environment

RESERVE = 10.0  # seconds before the end in which nothing is begun
POLL = 0.2  # seconds between two looks for work


class Task(Protocol):
    """Something to do once."""

    @property
    def slug(self) -> str:
        """The name of its result."""
        ...


T = TypeVar("T", bound=Task)


def claims(
    open_tasks: Callable[[], Sequence[T]], is_ready: Callable[[T], bool], words: argparse.Namespace
) -> Iterator[T]:
    """Tasks that can be done now, each claimed by one worker alone."""
    work = Path(words.work)
    while time.time() < words.deadline - RESERVE:
        wanted = open_tasks()
        ready = (task for task in wanted if is_ready(task))
        claimed = next((task for task in ready if _claim(work / f"{task.slug}.claim")), None)
        if claimed is not None:
            yield claimed
        elif all((work / f"{task.slug}.claim").exists() for task in wanted):
            return
        else:
            time.sleep(POLL)


def do(tasks: Iterator[T], measure: Callable[[T], dict[str, Any]], words: argparse.Namespace) -> None:
    """Do what is claimed; one broken task does not take the others with it."""
    for task in tasks:
        began = time.monotonic()
        try:
            found = measure(task)
        except Exception:
            traceback.print_exc()
            (Path(words.work) / f"{task.slug}.failed").touch()
            continue
        facts = {"wall_seconds": round(time.monotonic() - began, 1), "environment": environment()}
        write(words.out / f"{task.slug}.json", found | facts)
        print(f"[{words.worker}] {task.slug}: {time.monotonic() - began:.1f} s", flush=True)


def run_workers(script: str, words: argparse.Namespace) -> None:
    """Start the workers with the words of this call, and end them when the time is up."""
    work = Path(words.work)
    for stale in [*work.glob("*.claim"), *work.glob("*.failed")]:
        stale.unlink()
    command = [sys.executable, script, *sys.argv[1:], "--work", str(work), "--deadline", str(words.deadline)]
    workers = [subprocess.Popen([*command, "--worker", str(i)]) for i in range(words.workers)]
    try:
        for process in workers:
            process.wait(max(0.0, words.deadline - time.time()))
    except subprocess.TimeoutExpired:
        print("time is up", flush=True)
    finally:
        for process in workers:
            process.kill()
            process.wait()


def write(path: Path, words: dict[str, Any]) -> None:
    """A whole file or none."""
    fresh = path.with_suffix(".part")
    fresh.write_text(json.dumps(words, indent=2) + "\n")
    os.replace(fresh, path)


def _claim(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


Command = Callable[[argparse.Namespace], None]


def launch(parser: argparse.ArgumentParser, run: Command, worker: Command, *, name: str) -> None:
    """Read the words and be what they say: the one who starts the workers, or one of them."""
    parser.add_argument("--work", default=None, help="folder for weights and scores; a temporary one by default")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.worker is not None:
        worker(words)
        return
    words.deadline = time.time() + words.time_budget
    words.work = words.work or tempfile.mkdtemp(prefix=f"{name}-")
    run(words)
