"""Several processes on one command: they share the work, and none outlives it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from worlds.finished_runs import make_runs

ATTACK = [sys.executable, "-m", "splitveil.cli.main", "attack", "noisy", "--device", "cpu"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    make_runs(root)
    return root


def test_two_processes_give_the_result_of_one(runs: Path) -> None:
    shared = subprocess.run(
        [*ATTACK, "--suite", "cheap", "--workers", "2"], cwd=runs, capture_output=True, text=True, check=False
    )
    assert shared.returncode == 0, shared.stderr
    folder = runs / "noisy/attacks/cheap"
    together = _errors(folder)
    assert shared.stderr.count("MSE") == len(together) == 4
    assert not (folder / "claims").exists()
    for file in (folder / "attacks").iterdir():
        file.unlink()
    subprocess.run([*ATTACK, "--suite", "cheap", "-q"], cwd=runs, check=True)
    assert together == pytest.approx(_errors(folder), rel=1e-3)  # another number of threads rounds otherwise


def test_no_process_at_all_is_refused(runs: Path) -> None:
    said = subprocess.run([*ATTACK, "--workers", "0"], cwd=runs, capture_output=True, text=True, check=False)
    assert said.returncode == 2
    assert "--workers" in said.stderr


@pytest.mark.slow
def test_helpers_go_when_their_leader_is_killed(runs: Path) -> None:
    leader = subprocess.Popen([*ATTACK, "--queries", "1,4,16,64", "--workers", "3", "-q"], cwd=runs)
    try:
        helpers = _wait_for(lambda: _helpers_of(leader.pid), n=2)
        leader.send_signal(signal.SIGKILL)
        leader.wait()
        _wait_for(lambda: [pid for pid in helpers if not _is_alive(pid)], n=2)
    finally:
        leader.kill()


def _errors(folder: Path) -> dict[str, float]:
    attacks = json.loads((folder / "result.json").read_text())["attacks"]
    return {f"{each['attack']} {each['knowledge']}": each["mse"]["mean"] for each in attacks}


def _wait_for(find: Callable[[], list[int]], n: int) -> list[int]:
    for _ in range(600):
        if len(found := find()) >= n:
            return found
        time.sleep(0.2)
    pytest.fail(f"waited two minutes for {n} of them")


def _helpers_of(leader: int) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_text()
        except OSError:
            continue
        found += [int(process.name)] * (f"--helper\0{leader}\0" in line)
    return found


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
