"""Files are whole or not there."""

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from splitveil.check import RunError
from splitveil.writing import read_tensors, replacing, write_tensors, write_text


def _write_half(path: Path) -> None:
    with replacing(path) as fresh:
        fresh.write_text("half")
        raise RuntimeError


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    write_text(path, "old")
    with pytest.raises(RuntimeError):
        _write_half(path)
    assert path.read_text() == "old"
    write_text(path, "new")
    assert path.read_text() == "new"


def test_the_fresh_file_has_the_same_suffix(tmp_path: Path) -> None:
    with replacing(tmp_path / "scores.npz") as fresh:
        assert fresh.suffix == ".npz"
        fresh.touch()
    assert [path.name for path in tmp_path.iterdir()] == ["scores.npz"]


@pytest.mark.parametrize("kind", ["text", "tensors"])
def test_a_disk_that_refuses_is_told_in_one_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "gone" / "file"
    with pytest.raises(RunError, match=r"^cannot write .*file: No such file or directory; free some space and run"):
        write_text(path, "new") if kind == "text" else write_tensors(path, {"x": torch.zeros(2)})


def test_a_full_disk_is_told_in_one_line_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    write_text(path, "old")
    with pytest.raises(RunError, match="No space left on device; free some space"), replacing(path) as fresh:  # noqa: PT012
        fresh.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert [each.name for each in tmp_path.iterdir()] == ["numbers.json"]
    assert path.read_text() == "old"


def test_what_is_written_is_on_the_disk_before_it_takes_its_place(tmp_path: Path, monkeypatch) -> None:
    done = []
    monkeypatch.setattr(os, "fsync", lambda handle: done.append("fsync"))
    monkeypatch.setattr(os, "replace", lambda fresh, path: done.append("replace"))
    write_text(tmp_path / "numbers.json", "new")
    assert done == ["fsync", "replace"]


def test_threads_that_write_one_file_do_not_fail_each_other(tmp_path: Path) -> None:
    path, failed = tmp_path / "numbers.json", []

    def write(word: str) -> None:
        for _ in range(100):
            try:
                write_text(path, 1000 * word)
            except RunError as error:
                failed.append(error)

    writers = [threading.Thread(target=write, args=(word,)) for word in "ab"]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    assert not failed
    assert path.read_text() in (1000 * "a", 1000 * "b")
    assert [each.name for each in tmp_path.iterdir()] == ["numbers.json"]


def _half(path: Path, process: int) -> Path:
    """What another process would leave of `path`."""
    with replacing(path) as fresh:
        name = fresh.name.replace(f"-{os.getpid()}-", f"-{process}-")
        fresh.write_text("whole")
    half = path.with_name(name)
    half.write_text("half")
    return half


def test_what_a_kill_left_is_swept_up_by_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "numbers[0].json"
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    left, other = _half(path, ended.pid), _half(tmp_path / "other.json", ended.pid)
    running = _half(path, os.getppid())
    write_text(path, "new")
    assert not left.exists()
    assert other.exists()
    assert running.read_text() == "half"
    os.utime(running, (time.time() - 7200,) * 2)
    write_text(path, "newer")
    assert not running.exists()


def test_tensors_and_words_are_read_as_they_were_written(tmp_path: Path) -> None:
    path, x = tmp_path / "x.fit", torch.rand(3, 2).T
    assert read_tensors(path) is None
    write_tensors(path, {"x": x}, {"facts": "two"})
    tensors, words = read_tensors(path)
    assert torch.equal(tensors["x"], x)
    assert words == {"facts": "two"}


@pytest.mark.parametrize("kept", [0, 7, 40, -1])
def test_a_damaged_file_is_removed_as_if_it_had_never_been_written(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "x.fit"
    write_tensors(path, {"x": torch.rand(30)})
    path.write_bytes(path.read_bytes()[:kept])
    assert read_tensors(path) is None
    assert not path.exists()
