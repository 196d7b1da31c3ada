"""Files are whole or not there."""

from pathlib import Path

import pytest

from splitveil.writing import replacing, write_text


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
