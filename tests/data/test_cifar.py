"""CIFAR-10 and CIFAR-100 from files in exactly their official form."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from references.official import python2_pickle, write_cifar10, write_cifar100
from splitveil.check import UsageError
from splitveil.data import Role, read
from splitveil.data import cifar as cifar_module
from splitveil.data.unpickle import read_pickle


def test_cifar10_roles_follow_the_official_order(tmp_path: Path) -> None:
    root = write_cifar10(tmp_path)
    data = read(root)
    assert data.name == "cifar10"
    assert data.classes == tuple(f"class{k}" for k in range(10))
    assert [len(data.part(role)) for role in Role] == [80, 10, 20, 10]  # a fifth of a class of ten: two for selection
    files = [read_pickle(root / f"data_batch_{k}") for k in range(1, 6)]
    rows = np.concatenate([file["data"] for file in files])
    labels = np.concatenate([file["labels"] for file in files])
    for label in range(10):
        mine = torch.from_numpy(rows[labels == label].reshape(-1, 3, 32, 32))
        assert torch.equal(data.train.pixels[data.train.labels == label], mine[:8])
        assert torch.equal(data.selection.pixels[data.selection.labels == label], mine[8:])
    tested = read_pickle(root / "test_batch")
    for label in range(10):
        first, second = tested["data"][np.array(tested["labels"]) == label].reshape(-1, 3, 32, 32)
        assert np.array_equal(data.auxiliary.pixels[data.auxiliary.labels == label][0], first)
        assert np.array_equal(data.victims.pixels[data.victims.labels == label][0], second)


def test_cifar100_has_fine_labels(tmp_path: Path) -> None:
    data = read(write_cifar100(tmp_path))
    assert data.n_classes == 100
    assert data.classes[7] == "fine7"
    assert [len(data.part(role)) for role in Role] == [400, 200, 100, 300]


def test_the_folder_above_is_enough(tmp_path: Path) -> None:
    write_cifar100(tmp_path)
    assert read(tmp_path).sha256 == read(tmp_path / "cifar-100-python").sha256


def test_smaller_files_are_told(tmp_path: Path) -> None:
    assert "data_batch_1 holds 20 images, officially 10,000" in read(write_cifar10(tmp_path)).notes


def test_a_file_of_official_size_must_be_the_official_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_cifar10(tmp_path)
    sizes = dict.fromkeys(cifar_module.CIFAR10.n_images, 20)
    sums = {name: hashlib.md5((root / name).read_bytes()).hexdigest() for name in sizes}
    monkeypatch.setattr(cifar_module, "CIFAR10", replace(cifar_module.CIFAR10, n_images=sizes, md5=sums))
    assert read(root).notes == ()
    content = bytearray((root / "data_batch_4").read_bytes())
    content[2000] ^= 1  # one bit of one pixel
    (root / "data_batch_4").write_bytes(content)
    with pytest.raises(UsageError, match=r"data_batch_4: is not the official file .*; unpack cifar-10-python\.tar\.gz"):
        read(root)


def _remove(name: str) -> object:
    return lambda root: (root / name).unlink()


def _truncate(name: str) -> object:
    return lambda root: (root / name).write_bytes((root / name).read_bytes()[:-30])


def _rewrite(name: str, **changes: object) -> object:
    def change(root: Path) -> None:
        (root / name).write_bytes(python2_pickle(read_pickle(root / name) | changes))

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_remove("data_batch_3"), "data_batch_3: no such file; unpack cifar-10-python.tar.gz"),
        (_remove("test_batch"), "test_batch: no such file"),
        (_remove("batches.meta"), "batches.meta: no such file"),
        (_truncate("data_batch_2"), "data_batch_2: is truncated"),
        (_rewrite("data_batch_2", labels=[1]), "data_batch_2: has 20 images but 1 labels"),
        (_rewrite("data_batch_2", labels=[10] * 20), "data_batch_2: its labels must be numbers from 0 to 9"),
        (_rewrite("test_batch", data=np.zeros((20, 100), np.uint8)), "uint8 of shape (N, 3072), got uint8"),
        (_rewrite("test_batch", data="none"), "uint8 of shape (N, 3072), got str"),
        (_rewrite("batches.meta", label_names=["a"]), "batches.meta: does not name 10 classes"),
    ],
)
def test_bad_files_are_told_in_one_line(tmp_path: Path, damage: object, message: str) -> None:
    root = write_cifar10(tmp_path)
    damage(root)
    with pytest.raises(UsageError) as caught:
        read(root)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_archive_is_to_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(UsageError, match=r"is not an \.npz file; unpack archives, and give the folder"):
        read(tmp_path / "cifar-10-python.tar.gz")
