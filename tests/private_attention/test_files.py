from pathlib import Path

import pytest
import torch

from splitveil.check import UsageError
from splitveil.private_attention import files


def test_a_failed_write_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    files.write_json(path, {"a": 1})

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        files.write_json(path, {"a": 2})
    assert files.read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_tensors_come_back_as_written(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6).reshape(2, 3).T, "b": torch.randn(2)}
    files.write_tensors(tmp_path / "t.safetensors", tensors)
    again = files.read_tensors(tmp_path / "t.safetensors")
    assert all(torch.equal(again[name], tensors[name]) for name in tensors)


def test_nan_is_not_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        files.write_json(tmp_path / "x.json", {"a": float("nan")})


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        files.read_json(tmp_path / "nothing.json")
