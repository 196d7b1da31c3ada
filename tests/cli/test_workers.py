"""Several processes on one command: they share the work, and none outlives it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from splitveil import open_run
from splitveil.cli import attack, deadline, workers
from splitveil.cli.lock import alone_in
from splitveil.cli.main import run
from splitveil.evaluation import TimeUp
from worlds.finished_runs import make_runs

pytestmark = pytest.mark.xdist_group("workers")  # what they share is made once

ATTACK = [sys.executable, "-m", "splitveil.cli.main", "attack", "noisy", "--device", "cpu"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    make_runs(root)
    return root


def test_two_processes_give_the_result_of_one(runs: Path) -> None:
    alike = dict(os.environ) | {workers.THREADS: "1"}  # another number of threads rounds otherwise
    words = [*ATTACK, "--suite", "cheap", "--workers", "2"]
    shared = subprocess.run(words, cwd=runs, env=alike, capture_output=True, text=True, check=False)
    assert shared.returncode == 0, shared.stderr
    folder = runs / "noisy/attacks/cheap"
    together = _errors(folder)
    assert shared.stderr.count("MSE") == len(together) == 4
    assert not (folder / "claims").exists()
    for file in (folder / "attacks").iterdir():
        file.unlink()
    subprocess.run([*ATTACK, "--suite", "cheap", "-q"], cwd=runs, env=alike, check=True)
    assert together == pytest.approx(_errors(folder), rel=1e-6)


@pytest.mark.parametrize("n", ["0", "65"])
def test_no_process_at_all_or_far_too_many_are_refused(n: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(["attack", "noisy", "--workers", n])
    said = capsys.readouterr().err
    assert "--workers" in said
    assert said.count("\n") == 1


def test_what_is_left_of_the_time_is_handed_on_to_everyone(
    runs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now, given = [1000.0], []
    monkeypatch.setattr(deadline.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(deadline.time, "time", lambda: 50.0 + now[0])

    def passes(*_: object, time_budget: float, **__: object) -> Callable[[], tuple[int, int]]:
        given.append(time_budget)
        now[0] += 3.0
        return lambda: (1, 2)

    monkeypatch.setattr(workers, "prepare", passes)
    monkeypatch.setattr(workers, "take_part", passes)

    def ends(*_: object, time_budget: float, **__: object) -> None:
        given.append(time_budget)
        raise TimeUp

    monkeypatch.setattr(attack, "run_suite", ends)
    monkeypatch.setattr(workers.subprocess, "Popen", Ended)
    monkeypatch.chdir(tmp_path)
    until, opened = deadline.Deadline.after(10.0), open_run(runs / "noisy")
    now[0] += 1.0
    words = {"suite": "cheap", "label": "noisy", "quiet": True}
    team = workers.Team(2, ("attack",))
    with pytest.raises(TimeUp):
        attack.run_attacks(opened.split.client, opened.data, Path("out"), **words, deadline=until, team=team)
    assert given == [9.0, 6.0, 3.0]
    command = Ended.commands[-1]
    assert float(command[command.index("--until") + 1]) == 1060.0
    assert not list(Path("out").glob("*.log"))


class Ended:
    """A process that is done at once."""

    commands: ClassVar[list[list[str]]] = []
    environments: ClassVar[list[dict[str, str]]] = []
    returncode = 0

    def __init__(self, command: list[str], *, env: dict[str, str], **_: object) -> None:
        self.commands.append(command)
        self.environments.append(env)

    def poll(self) -> int:
        return self.returncode

    def wait(self) -> int:
        return self.returncode

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


@pytest.mark.parametrize("own", [None, "3"])
def test_who_has_set_the_number_of_threads_keeps_it(
    own: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(workers.subprocess, "Popen", Ended)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    if own is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", own)
    before = torch.get_num_threads()
    with workers.Helpers(workers.Team(4, ()), tmp_path, deadline.Deadline(), on_cpu=True):
        assert torch.get_num_threads() == (2 if own is None else before)
    assert torch.get_num_threads() == before
    assert Ended.environments[-1]["OMP_NUM_THREADS"] == (own or "2")


def test_a_helper_that_fails_is_told_of_and_its_log_is_kept(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with workers.Helpers(workers.Team(2, ("atack",)), tmp_path, deadline.Deadline(), on_cpu=True) as helpers:
        while helpers.n_running:
            time.sleep(0.1)
    said = capfd.readouterr().err
    assert said.startswith("a helper ended with code 2, see ")
    assert said.count("\n") == 1
    assert "atack" in (tmp_path / "helper-1.log").read_text()


def test_a_helper_whose_time_is_up_begins_nothing_and_ends_well(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--device", "cpu", "--helper", str(os.getppid()), "--until", str(time.time() - 1)]
    with pytest.raises(SystemExit) as stop:
        run(["attack", str(runs / "noisy"), *words])
    assert not stop.value.code
    assert not capsys.readouterr().err
    assert not list((runs / "noisy/attacks/standard/attacks").iterdir())


def test_a_helper_whose_leader_is_gone_stops(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="3"):
        run(["attack", str(runs / "noisy"), "--device", "cpu", "--helper", str(os.getpid())])
    assert "interrupted" in capsys.readouterr().err


def test_two_commands_in_one_folder_do_not_meet(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = runs / "noisy" / "attacks" / "cheap"
    for words in (["attack"], ["evaluate"]):
        with alone_in(folder), pytest.raises(SystemExit, match="2"):
            run([*words, str(runs / "noisy"), "--suite", "cheap", "--device", "cpu"])
        said = capsys.readouterr().err
        assert f"{folder}: another command is at work in this folder; wait" in said
        assert said.count("\n") == 1
    with alone_in(folder):
        pass


def test_the_bar_says_how_many_are_finished_while_the_last_ones_are_at_work(
    runs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told, finished = [], iter([(1, 4), (3, 4), (4, 4)])
    monkeypatch.setattr(workers, "prepare", lambda *_, **__: None)
    monkeypatch.setattr(workers, "take_part", lambda *_, **__: lambda: next(finished))
    monkeypatch.setattr(workers, "POLL", 0.0)
    codes = iter([None, None, None, 0])
    monkeypatch.setattr(Ended, "poll", lambda self: next(codes, 0))
    monkeypatch.setattr(workers.subprocess, "Popen", Ended)
    opened = open_run(runs / "noisy")
    words = workers.Words(out=tmp_path, seeds=(0,), head=None, progress=told.append)
    whole = (workers.Team(2, ()), opened.split.client, "cheap", opened.data, words)
    workers.play_together(*whole, deadline=deadline.Deadline())
    assert [(update.index, update.total) for update in told] == [(1, 4), (3, 4), (4, 4)]
    assert not (tmp_path / "claims").exists()


@pytest.mark.slow
def test_helpers_go_when_their_leader_is_killed(runs: Path) -> None:
    with subprocess.Popen([*ATTACK, "--queries", "1,4,16,64", "--workers", "3", "-q"], cwd=runs) as leader:
        try:
            helpers = _wait_for(lambda: _helpers_of(leader.pid), n=2)
        finally:
            leader.kill()
    _wait_for(lambda: [pid for pid in helpers if not _is_alive(pid)], n=2)


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
