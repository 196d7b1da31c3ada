"""CIFAR-10's roles, on generated packs and, where they are, on the real ones."""

from pathlib import Path

import numpy as np
import pytest
import torch

from references.packs import save_med
from references.shared import PACKS, needs_packs
from splitveil.check import UsageError
from splitveil.data import ImageSet, Part, Role, read
from splitveil.data import cifar_packs as cifar_module

CIFAR10_SHA256 = "6f4247ba63d6f4bb06a9188f65407eed5004c317d5a627285303a1256d875783"  # read(folder of all seven packs)
CLASSES = np.array([f"class{k}" for k in range(10)])


def _write(folder: Path, name: str, *, begin: int, per_class: int, stride: int = 1) -> None:
    """A pack of flat images whose pixels tell their official index."""
    index = np.arange(begin, begin + 10 * per_class * stride, stride, dtype=np.int32)
    images = np.zeros((len(index), 32, 32, 3), np.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1], images[:, 0, 0, 2] = index % 256, index // 256, 77 if "test" in name else 0
    save_med(folder / f"cifar10-{name}.npz", images, (index % 10).astype(np.uint8), index=index, classes=CLASSES)


def _indices(part: Part) -> list[int]:
    corner = part.pixels[:, :, 0, 0].long()
    return (corner[:, 0] + 256 * corner[:, 1]).tolist()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two train packs of 20 and two test packs of 10, with one image of each class for selection."""
    monkeypatch.setattr(cifar_module, "SELECTION_10", 1)
    _write(tmp_path, "train-a", begin=0, per_class=2)
    _write(tmp_path, "train-b", begin=20, per_class=2)
    _write(tmp_path, "test-a", begin=0, per_class=1)
    _write(tmp_path, "test-b", begin=10, per_class=1)
    return tmp_path


def test_roles_follow_the_official_order(folder: Path) -> None:
    data = read(folder)
    assert sorted(_indices(data.train)) == list(range(30))
    assert sorted(_indices(data.selection)) == list(range(30, 40))
    assert sorted(_indices(data.auxiliary)) == list(range(10))
    assert sorted(_indices(data.victims)) == list(range(10, 20))
    assert data.classes == tuple(CLASSES)


def test_absent_packs_are_noted(folder: Path) -> None:
    assert read(folder).notes == ("packs train-c, train-d, train-e absent",)


def test_a_lone_test_pack_is_halved(folder: Path) -> None:
    (folder / "cifar10-test-b.npz").unlink()
    _write(folder, "test-a", begin=0, per_class=2)
    data = read(folder)
    assert sorted(_indices(data.auxiliary)) == list(range(10))
    assert sorted(_indices(data.victims)) == list(range(10, 20))
    assert data.notes == ("packs train-c, train-d, train-e absent", "packs test-b absent")


def test_folder_without_test_packs_is_refused(folder: Path) -> None:
    for path in folder.glob("cifar10-test-*"):
        path.unlink()
    with pytest.raises(UsageError, match=r"has no pack cifar10-test-\*\.npz; put cifar10-test-a\.npz there"):
        read(folder)


def test_truncated_pack_is_named(folder: Path) -> None:
    path = folder / "cifar10-train-b.npz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UsageError, match=r"cifar10-train-b\.npz: is truncated or corrupt"):
        read(folder)


def test_pack_of_something_else_is_named(folder: Path) -> None:
    save_med(folder / "cifar10-train-a.npz", np.zeros((2, 4, 4), np.uint8), np.array([0, 1]))
    with pytest.raises(UsageError, match=r"cifar10-train-a\.npz: is not a CIFAR-10 pack"):
        read(folder)


@pytest.mark.slow
@needs_packs(*(f"cifar10-{name}.npz" for name in ("train-a", "train-e", "test-a", "test-b")))
def test_real_packs_have_the_published_facts() -> None:
    data: ImageSet = read(PACKS)
    assert [len(data.part(role)) for role in Role] == [48_000, 5_000, 2_000, 5_000]
    for role in Role:
        assert len(set(torch.bincount(data.part(role).labels).tolist())) == 1
    both = torch.cat([data.train.pixels, data.selection.pixels]).double() / 255
    # the published channel statistics of CIFAR-10's training half
    assert torch.allclose(both.mean((0, 2, 3)), torch.tensor([0.49139968, 0.48215841, 0.44653091]).double(), atol=1e-8)
    assert data.sha256 == CIFAR10_SHA256
