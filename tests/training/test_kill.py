"""A run that is killed, interrupted or out of disk goes on as if nothing had happened."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from splitveil.cli.catalog import REGULARIZERS
from splitveil.training.checkpoint import NAME, PREVIOUS, SCRATCH, load
from worlds.sittings import (
    RESUME,
    RUN,
    Sitting,
    Start,
    differences,
    epochs_kept,
    kill_and_resume,
    start_cold,
    start_warm,
    words,
    write_images,
)

pytestmark = pytest.mark.xdist_group("sittings")  # the runs below are made once

TWO = ("kmeans", "gated-pooling")  # a reservoir that is refitted each epoch, and parameters with an optimizer
WORDS = words(TWO, epochs=10)


def finish(sitting: Sitting) -> str:
    code, said = sitting.end()
    assert code == 0, said
    return said


def fail(sitting: Sitting) -> str:
    """The one line of a run that could not go on."""
    code, said = sitting.end()
    assert code == 3, said
    assert said.count("\n") == 1, said
    return said


def make_whole(start: Start, folder: Path, regularizers: tuple[str, ...], *, epochs: int) -> Path:
    write_images(folder / "images.npz")
    finish(start(words(regularizers, epochs=epochs, out="whole"), folder))
    return folder / "whole"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    return make_whole(start_warm, tmp_path_factory.mktemp("whole"), TWO, epochs=10)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted by Ctrl-C inside its third epoch."""
    folder = tmp_path_factory.mktemp("stopped")
    write_images(folder / "images.npz")
    sitting = start_warm(WORDS, folder)
    sitting.wait_for_an_epoch(folder / RUN)
    sitting.wait_for_an_epoch(folder / RUN)
    os.kill(sitting.pid, signal.SIGINT)
    assert f"splitveil train --resume {RUN}" in fail(sitting)
    assert 2 <= epochs_kept(folder / RUN) < 10
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_images(tmp_path / "images.npz")
    return tmp_path


@pytest.fixture
def disk(folder: Path, stopped: Path) -> Iterator[Path]:
    """A small disk of its own that holds the interrupted run."""
    (folder / RUN).mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder / RUN], capture_output=True)
    if mounted.returncode:
        pytest.skip("making a small disk needs root")
    shutil.copytree(stopped / RUN, folder / RUN, dirs_exist_ok=True)
    yield folder / RUN
    subprocess.run(["umount", folder / RUN], check=True)


def resumable(stopped: Path, folder: Path) -> Path:
    """A copy of the interrupted run."""
    shutil.copytree(stopped / RUN, folder / RUN)
    return folder / RUN


def test_a_run_killed_three_times_ends_as_one_that_was_not(folder: Path, whole: Path) -> None:
    seen = kill_and_resume(start_warm, WORDS, folder, kills=3, seed=0)
    finish(start_warm(RESUME, folder))
    assert seen
    assert differences(whole, folder / RUN) == []
    assert not list((folder / RUN).rglob(SCRATCH))


@pytest.mark.slow
def test_a_run_with_every_regularizer_killed_twenty_times_ends_as_one_that_was_not(tmp_path: Path) -> None:
    whole = make_whole(start_cold, tmp_path, tuple(REGULARIZERS), epochs=60)
    seen = kill_and_resume(start_cold, words(tuple(REGULARIZERS), epochs=60), tmp_path, kills=20, seed=1)
    finish(start_cold(RESUME, tmp_path))
    assert len(seen) == 20
    assert differences(whole, tmp_path / RUN) == []
    assert not list((tmp_path / RUN).rglob(SCRATCH))


def test_a_kill_before_the_first_checkpoint_starts_over(folder: Path, whole: Path) -> None:
    sitting = start_warm(WORDS, folder)
    while not (folder / RUN / "config.yaml").exists():
        assert not sitting.is_over(0.001)
    sitting.kill()
    assert epochs_kept(folder / RUN) == 0
    finish(start_warm(RESUME, folder))
    assert differences(whole, folder / RUN) == []


def test_what_a_kill_left_before_the_run_began_is_no_obstacle(folder: Path, whole: Path) -> None:
    (folder / RUN / SCRATCH).mkdir(parents=True)
    (folder / RUN / SCRATCH / "config.yaml").write_text("half")
    (folder / RUN / ".writable").touch()
    finish(start_warm(WORDS, folder))
    assert differences(whole, folder / RUN) == []


def test_an_interrupted_run_goes_on_in_the_middle_of_its_epoch(folder: Path, stopped: Path, whole: Path) -> None:
    resumable(stopped, folder)
    finish(start_warm(RESUME, folder))
    assert differences(whole, folder / RUN) == []


def test_a_terminated_run_saves_as_an_interrupted_one(folder: Path, whole: Path) -> None:
    sitting = start_warm(WORDS, folder)
    sitting.wait_for_an_epoch(folder / RUN)
    os.kill(sitting.pid, signal.SIGTERM)
    assert f"splitveil train --resume {RUN}" in fail(sitting)
    finish(start_warm(RESUME, folder))
    assert differences(whole, folder / RUN) == []


def test_a_kill_while_the_result_is_written_is_made_good(folder: Path, whole: Path) -> None:
    shutil.copytree(whole, folder / RUN)
    (folder / RUN / "result.json").unlink()
    (folder / RUN / "model" / "head.safetensors").unlink()
    finish(start_warm(RESUME, folder))
    assert differences(whole, folder / RUN) == []


def test_a_file_that_cannot_grow_costs_nothing(folder: Path, stopped: Path, whole: Path) -> None:
    kept = (resumable(stopped, folder) / NAME).read_bytes()
    said = fail(start_warm(RESUME, folder, largest_file=len(kept) // 2))
    assert f"error: cannot write {RUN}/{NAME}: File too large" in said
    assert (folder / RUN / NAME).read_bytes() == kept
    finish(start_warm(RESUME, folder))
    assert differences(whole, folder / RUN) == []


def test_a_full_disk_costs_nothing(folder: Path, disk: Path, whole: Path) -> None:
    kept = (disk / NAME).read_bytes()
    (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free - len(kept) // 2))
    assert "No space left on device" in fail(start_warm(RESUME, folder))
    assert (disk / NAME).read_bytes() == kept
    (disk / "ballast").unlink()
    finish(start_warm(RESUME, folder))
    assert differences(whole, disk) == []


def test_a_disk_that_became_read_only_costs_nothing(folder: Path, disk: Path, whole: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    assert f"error: cannot write in {RUN}: Read-only file system" in fail(start_warm(RESUME, folder))
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    finish(start_warm(RESUME, folder))
    assert differences(whole, disk) == []


def test_a_truncated_checkpoint_is_told_and_the_one_before_is_used(folder: Path, stopped: Path, whole: Path) -> None:
    run = resumable(stopped, folder)
    os.truncate(run / NAME, (run / NAME).stat().st_size // 2)
    said = finish(start_warm(RESUME, folder))
    assert said == f"{RUN}: {NAME} is damaged: going on from the one before, epoch {epochs_kept(stopped / RUN)}\n"
    assert differences(whole, folder / RUN) == []


def test_when_no_checkpoint_can_be_read_one_line_says_so_and_nothing_is_touched(folder: Path, stopped: Path) -> None:
    run = resumable(stopped, folder)
    for name in (NAME, PREVIOUS):
        os.truncate(run / name, 100)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert "cannot be read" in fail(start_warm(RESUME, folder))
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_one_changed_bit_is_seen_as_a_difference(folder: Path, whole: Path) -> None:
    copy = Path(shutil.copytree(whole, folder / RUN))
    head = copy / "model" / "head.safetensors"
    changed = bytearray(head.read_bytes())
    changed[-1] ^= 1
    head.write_bytes(changed)
    metrics = (copy / "metrics.jsonl").read_text()
    (copy / "metrics.jsonl").write_text(metrics.replace('"step": 30', '"step": 31'))
    assert {text.split()[0] for text in differences(whole, copy)} == {"model/head.safetensors", "metrics.jsonl"}


def test_a_checkpoint_keeps_the_best_weights_and_every_penalty(stopped: Path) -> None:
    found = load(stopped / RUN).checkpoint
    assert found is not None
    assert found.part("best").keys() == found.part("model").keys()
    assert all(found.part(f"term/{name}") for name in TWO)
