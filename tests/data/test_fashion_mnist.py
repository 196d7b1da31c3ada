"""The embedded set: its facts, and that it is Fashion-MNIST pixel for pixel."""

import gzip
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from splitveil.check import UsageError
from splitveil.data import ImageSet, Role
from splitveil.data import fashion as read_fashion
from splitveil.data.fashion_mnist import EMBEDDED
from splitveil.data.pack import load_pack

# SHA-256 of the set as made by tools/make_fashion.py from Debian's dataset-fashion-mnist
# 0.0~git20200523.55506a9-1
SET_SHA256 = "a2412c44571d2280a662474214cad3b087b3b8b5ccc124e301c136d4ce9cf99a"
OFFICIAL = Path("/usr/share/datasets/fashion-mnist")  # where Debian's package puts the official files


@pytest.fixture(scope="module")
def fashion() -> ImageSet:
    return read_fashion()


def test_counts_are_as_documented(fashion: ImageSet) -> None:
    counts = {role: len(fashion.part(role)) for role in Role}
    assert counts == {Role.TRAIN: 12_000, Role.AUXILIARY: 5_000, Role.SELECTION: 2_000, Role.VICTIMS: 2_500}
    assert fashion.image_shape == (1, 28, 28)
    assert len(fashion.classes) == 10


@pytest.mark.parametrize("role", Role)
def test_classes_are_balanced_and_mixed(fashion: ImageSet, role: Role) -> None:
    labels = fashion.part(role).labels
    assert set(torch.bincount(labels, minlength=10).tolist()) == {len(labels) // 10}
    assert len(labels[:64].unique()) == 10  # so that the first few images are a fair sample


def test_no_image_comes_twice(fashion: ImageSet) -> None:
    everything = np.concatenate([fashion.part(role).pixels.numpy() for role in Role])
    assert len({image.tobytes() for image in everything}) == 21_500


def test_content_is_golden(fashion: ImageSet) -> None:
    assert fashion.sha256 == SET_SHA256


def test_file_is_small_and_has_its_notice() -> None:
    assert EMBEDDED.stat().st_size <= 8_000_000
    notice = EMBEDDED.with_suffix(".NOTICE").read_text()
    assert "MIT License" in notice
    assert "Zalando SE" in notice


def test_decoding_is_fast() -> None:
    begin = time.process_time()
    load_pack(EMBEDDED)
    assert time.process_time() - begin < 2  # about 0.5 s on one core; slack for slow machines


@pytest.mark.skipif(not OFFICIAL.exists(), reason="Debian's dataset-fashion-mnist is not installed")
def test_every_image_equals_its_official_original() -> None:
    pack = load_pack(EMBEDDED)
    halves = {"train": (0, 2), "t10k": (1, 3)}  # roles by number
    for half, numbers in halves.items():
        mine = np.isin(pack.fields["role"], numbers)
        place = pack.fields["index"][mine]
        images = gzip.decompress((OFFICIAL / f"{half}-images-idx3-ubyte.gz").read_bytes())
        labels = gzip.decompress((OFFICIAL / f"{half}-labels-idx1-ubyte.gz").read_bytes())
        assert np.array_equal(
            pack.images[mine, ..., 0], np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28)[place]
        )
        assert np.array_equal(pack.fields["label"][mine], np.frombuffer(labels, np.uint8, offset=8)[place])


def test_damaged_installation_says_to_install_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "fashion.npz"
    broken.write_bytes(EMBEDDED.read_bytes()[:1000])
    monkeypatch.setattr("splitveil.data.fashion_mnist.EMBEDDED", broken)
    with pytest.raises(UsageError, match=r"fashion\.npz: .*; install splitveil again"):
        read_fashion()
