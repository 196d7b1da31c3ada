"""Two processes take the steps that one takes; only the first one writes."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from splitveil.check import RunError, UsageError
from splitveil.training import Recipe
from splitveil.training.checkpoint import NAME
from splitveil.training.course import Course, refuse_strangers
from splitveil.training.device import Place
from splitveil.training.log import read_log
from splitveil.training.setup import refuse_statistics, steps_per_epoch
from worlds import ranked
from worlds.ranked import CASES, CLI_RUN, STOPPED
from worlds.sittings import epochs_kept, write_images
from worlds.small import small_images, small_split

pytestmark = pytest.mark.xdist_group("ranks")
TOLERANCE = 1e-10
EVERY = [*CASES, STOPPED]


PYTHON = [sys.executable, "-W", "ignore"]
LAUNCH = {1: PYTHON, 2: [*PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]}


def environment() -> dict[str, str]:
    """Ours, with the tests' modules to be found."""
    paths = os.pathsep.join([str(Path(ranked.__file__).parents[1]), *sys.path])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """What one process and what two made of the same cases."""
    start = tmp_path_factory.mktemp("start")
    write_images(start / "images.npz")
    stopped = ranked.play(CASES["kmeans"], out=start / STOPPED, watcher=ranked.StopInside())
    assert stopped.stopped == "interrupted"
    made = {n: Path(shutil.copytree(start, tmp_path_factory.mktemp(f"ranks{n}"), dirs_exist_ok=True)) for n in (1, 2)}
    for n, folder in made.items():
        command = [*LAUNCH[n], ranked.__file__, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=240)
        assert done.returncode == 0, done.stderr
        (folder / "stdout.txt").write_text(done.stdout)
        (folder / "stderr.txt").write_text(done.stderr)
    return made


def gap(one: Path, two: Path) -> float:
    """The largest difference between the tensors of two files."""
    ours, theirs = load_file(one), load_file(two)
    assert ours.keys() == theirs.keys()
    return max((ours[name].double() - theirs[name].double()).abs().max().item() for name in ours if ours[name].numel())


@pytest.mark.parametrize("case", EVERY)
def test_two_processes_end_in_the_state_of_one(folders: dict[int, Path], case: str) -> None:
    one, two = (folders[n] / case / NAME for n in (1, 2))
    assert {t.dtype for name, t in load_file(one).items() if name.startswith("model/")} == {torch.float64}
    assert gap(one, two) <= TOLERANCE


@pytest.mark.parametrize("case", EVERY)
def test_two_processes_show_the_numbers_of_one(folders: dict[int, Path], case: str) -> None:
    one, two = (read_log(folders[n] / case) for n in (1, 2))
    assert [record["step"] for record in one] == [10, 20]
    for ours, theirs in zip(one, two, strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours.keys() - {"seconds"}:
            assert ours[name] == pytest.approx(theirs[name], rel=TOLERANCE, abs=TOLERANCE), name


def test_a_run_resumed_on_two_processes_is_the_run_of_one_that_never_stopped(folders: dict[int, Path]) -> None:
    assert gap(folders[1] / "kmeans" / NAME, folders[2] / STOPPED / NAME) <= TOLERANCE


def test_the_command_line_on_two_processes_writes_one_run(folders: dict[int, Path]) -> None:
    one, two = (folders[n] / CLI_RUN for n in (1, 2))
    files = [
        sorted(str(p.relative_to(run)) for p in run.rglob("*") if "tensorboard" not in p.parts) for run in (one, two)
    ]
    assert files[0] == files[1]
    assert len(list(two.glob("tensorboard/events*"))) == 1
    for name in ("encoder", "head"):
        assert gap(*(run / "model" / f"{name}.safetensors" for run in (one, two))) <= TOLERANCE


def test_the_command_line_on_two_processes_speaks_once(folders: dict[int, Path]) -> None:
    said = (folders[2] / "stdout.txt").read_text()
    assert said.count("accuracy on the victims") == 1
    assert (folders[2] / "stderr.txt").read_text().count("epoch 3/3") == 1


@pytest.mark.slow
def test_ctrl_c_stops_both_processes_at_one_step_and_one_alone_goes_on(tmp_path: Path) -> None:
    write_images(tmp_path / "images.npz")
    with (tmp_path / "said.txt").open("w") as said:
        command = [*LAUNCH[2], "-m", "splitveil.cli.main", *ranked.cli_words(epochs=120, out="parted"), "-q"]
        running = subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=said, start_new_session=True)
        while epochs_kept(tmp_path / "parted") < 2:
            time.sleep(0.01)
            assert running.poll() is None, (tmp_path / "said.txt").read_text()
        running.send_signal(signal.SIGINT)
        assert running.wait(60) != 0
    assert "splitveil train --resume parted" in (tmp_path / "said.txt").read_text()
    assert epochs_kept(tmp_path / "parted") < 120
    for words in (["train", "--resume=parted", "-q"], [*ranked.cli_words(epochs=120, out="whole"), "-q"]):
        command = [*LAUNCH[1], "-m", "splitveil.cli.main", *words]
        subprocess.run(command, cwd=tmp_path, env=environment(), check=True, timeout=240)
    assert gap(tmp_path / "parted" / NAME, tmp_path / "whole" / NAME) <= TOLERANCE


@pytest.mark.parametrize(("freeze", "is_refused"), [("nothing", True), ("head", True), ("encoder", False)])
def test_batch_statistics_are_refused_on_cpu_ranks_unless_frozen(freeze: str, is_refused: bool) -> None:
    split = small_split(batch_norm=True)  # its one batch norm is the client's
    if not is_refused:
        refuse_statistics(split, Recipe(freeze=freeze))
        return
    with pytest.raises(UsageError, match=r"1 takes statistics of its batch"):
        refuse_statistics(split, Recipe(freeze=freeze))


def test_a_batch_that_cannot_be_shared_evenly_is_refused_with_one_that_can() -> None:
    with pytest.raises(UsageError, match="batch_size 16 cannot be shared by 3 processes; use 15"):
        steps_per_epoch(small_images().train, Recipe(batch_size=16), n_ranks=3)


class TwoRanks:
    """Stands in for a Fabric of two processes."""

    device, global_rank, world_size = torch.device("cpu"), 0, 2


def test_processes_that_found_different_checkpoints_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(TwoRanks())
    monkeypatch.setattr(Place, "highest", lambda self, number: max(number, 0))  # the other one is at the start
    refuse_strangers(Course(epoch=0, batch=0), place)
    with pytest.raises(RunError, match="a disk that all share"):
        refuse_strangers(Course(epoch=2, batch=1), place)
