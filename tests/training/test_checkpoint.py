"""A run's state survives being cut short anywhere."""

from pathlib import Path

import pytest
import torch
from torch import nn

from splitveil.check import RunError
from splitveil.training import checkpoint as files
from splitveil.training.checkpoint import Checkpoint, Found, load, save


def numbered(n: int) -> Checkpoint:
    return Checkpoint({"model/w": torch.full((3,), float(n))}, {"epoch": n})


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    save(tmp_path, numbered(1))
    found = load(tmp_path)
    assert found.checkpoint is not None
    assert found.checkpoint.state == {"epoch": 1}
    assert found.checkpoint.part("model")["w"].tolist() == [1.0, 1.0, 1.0]
    assert not found.damaged


def test_a_run_without_a_checkpoint_has_none(tmp_path: Path) -> None:
    assert load(tmp_path) == Found(None)


@pytest.mark.parametrize("keep", [0, 5, 60, 90])
def test_a_truncated_checkpoint_falls_back_to_the_one_before(tmp_path: Path, keep: int) -> None:
    save(tmp_path, numbered(1))
    save(tmp_path, numbered(2))
    path = tmp_path / files.NAME
    path.write_bytes(path.read_bytes()[:keep])
    found = load(tmp_path)
    assert found.checkpoint is not None
    assert found.checkpoint.state == {"epoch": 1}
    assert found.damaged == (files.NAME,)


def test_when_every_checkpoint_is_damaged_one_line_says_so(tmp_path: Path) -> None:
    save(tmp_path, numbered(1))
    (tmp_path / files.NAME).write_bytes(b"nonsense")
    with pytest.raises(RunError, match=r"checkpoint\.safetensors cannot be read"):
        load(tmp_path)


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path: Path) -> None:
    save(tmp_path, numbered(1))
    (tmp_path / files.NAME).rename(tmp_path / files.PREVIOUS)
    found = load(tmp_path)
    assert found.checkpoint is not None
    assert found.checkpoint.state == {"epoch": 1}
    assert not found.damaged


def test_what_a_kill_left_half_written_is_swept_up(tmp_path: Path) -> None:
    save(tmp_path, numbered(1))
    for scratch in (tmp_path / files.SCRATCH, tmp_path / "model" / files.SCRATCH):
        scratch.mkdir(parents=True)
        (scratch / ".tmp12ab").write_bytes(b"half")
    files.sweep_up(tmp_path)
    assert sorted(p.name for p in tmp_path.rglob("*")) == [files.NAME, "model"]


def test_a_directory_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(RunError, match=r"cannot write in .*gone: No such file or directory; the run is as it was"):
        files.sweep_up(gone)
    with pytest.raises(RunError, match=r"cannot write .*gone.*: No such file or directory; what was there"):
        save(gone, numbered(1))


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    files.write_text(tmp_path / "a.json", "old")
    with pytest.raises(UnicodeEncodeError):
        files.write_text(tmp_path / "a.json", "\ud800")
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "old"


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_an_optimizer_goes_on_as_if_never_stopped(kind: type[torch.optim.Optimizer]) -> None:
    def steps(module: nn.Linear, optimizer: torch.optim.Optimizer, n: int) -> None:
        for _ in range(n):
            optimizer.zero_grad()
            module(torch.ones(1, 2)).square().sum().backward()
            optimizer.step()

    whole, parted = nn.Linear(2, 2), nn.Linear(2, 2)
    parted.load_state_dict(whole.state_dict())
    options = {"lr": 0.1, "momentum": 0.9} if kind is torch.optim.SGD else {"lr": 0.1}
    steps(whole, kind(whole.parameters(), **options), 4)
    before = kind(parted.parameters(), **options)
    steps(parted, before, 2)
    after = kind(parted.parameters(), **options)
    files.restore_optimizer(after, files.optimizer_tensors(before))
    steps(parted, after, 2)
    assert torch.equal(whole.weight, parted.weight)
