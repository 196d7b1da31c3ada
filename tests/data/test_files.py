"""Streamed parts: the same bits, batches and augmentations as resident ones."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from references.official import save_noise
from splitveil.check import UsageError
from splitveil.data import Augment, Decoding, ImageSet, Role, batches, read, sweep
from splitveil.randomness import SeededSource

# Python 3.12 warns of any fork of a process with threads; torch's loader forks, and its workers only decode
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
RNG = np.random.default_rng(2)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "pets"
    for name in ("cat", "dog", "eel"):
        (folder / name).mkdir(parents=True)
        for k in range(20):
            save_noise(folder / name / f"{k}.jpg", RNG, size=(11 + k, 13))
    return folder


@pytest.fixture(scope="module")
def resident(root: Path) -> ImageSet:
    return read(root, decoding=Decoding(size=8))


@pytest.fixture(scope="module", params=[0, 2])
def streamed(request: pytest.FixtureRequest, root: Path) -> Iterator[ImageSet]:
    """Decoded in this process and by two others."""
    return read(root, decoding=Decoding(size=8, memory=1, workers=request.param))


def test_larger_than_memory_is_streamed(resident: ImageSet, streamed: ImageSet) -> None:
    assert all(streamed.part(role).is_streamed for role in Role)
    assert not any(resident.part(role).is_streamed for role in Role)
    assert streamed.train.n_bytes == resident.train.n_bytes == resident.train.pixels.numel()


@pytest.mark.parametrize("role", Role)
def test_streamed_images_are_the_resident_ones(resident: ImageSet, streamed: ImageSet, role: Role) -> None:
    there, here = resident.part(role), streamed.part(role)
    assert torch.equal(there.labels, here.labels)
    assert torch.equal(there.images(), here.images())
    assert torch.equal(there.images(torch.tensor([2, 0])), here.images(torch.tensor([2, 0])))
    assert torch.equal(there.images(slice(1, 3)), here.images(slice(1, 3)))
    assert torch.equal(there.take(2).images(), here.take(2).images())
    assert torch.equal(here.loaded().pixels, there.pixels)


def test_streamed_epochs_are_the_resident_ones(resident: ImageSet, streamed: ImageSet) -> None:
    settings = {"size": 8, "seed": 3, "epoch": 1, "start": 1, "rank": 1, "world": 2, "drop_last": False}
    augment = Augment(crop=2, flip=True)
    pairs = zip(batches(resident.train, **settings), batches(streamed.train, **settings), strict=True)
    for step, (there, here) in enumerate(pairs):
        assert there.rows == here.rows
        assert torch.equal(there.index, here.index)
        assert torch.equal(there.y, here.y)
        views = [augment(b.x, SeededSource(0, "augment", step, rows=b.rows)) for b in (there, here)]
        assert torch.equal(views[0], views[1])


def test_streaming_leaves_the_global_random_state_alone(streamed: ImageSet) -> None:
    before = torch.get_rng_state()
    list(sweep(streamed.victims, 4))
    assert torch.equal(torch.get_rng_state(), before)


def test_streamed_parts_are_joined_file_by_file(resident: ImageSet, streamed: ImageSet) -> None:
    there, here = (data.train.joined(data.auxiliary) for data in (resident, streamed))
    assert torch.equal(there.images(), here.images())
    assert torch.equal(there.labels, here.labels)
    with pytest.raises(UsageError, match="a resident part cannot be joined with a streamed one"):
        resident.train.joined(streamed.auxiliary)


def test_hash_of_a_streamed_set_follows_its_files(root: Path, streamed: ImageSet) -> None:
    again = read(root, decoding=Decoding(size=8, memory=1))
    assert again.sha256 == streamed.sha256
    other = read(root, seed=1, decoding=Decoding(size=8, memory=1))
    assert other.sha256 != streamed.sha256


def test_copies_among_streamed_files_are_dropped(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for k in range(8):
            save_noise(tmp_path / name / f"{k}.png", RNG, size=(8, 8))
    (tmp_path / "a" / "again.png").write_bytes((tmp_path / "a" / "0.png").read_bytes())
    assert read(tmp_path, decoding=Decoding(memory=1)).notes == ("1 exact copies dropped",)


@pytest.mark.parametrize("workers", [0, 2])
def test_image_that_breaks_on_the_way_is_named_in_one_line(tmp_path: Path, workers: int) -> None:
    (tmp_path / "a").mkdir()
    for k in range(8):
        save_noise(tmp_path / "a" / f"{k}.png", RNG, size=(8, 8))
    path = tmp_path / "a" / "3.png"
    path.write_bytes(path.read_bytes()[:-40])
    data = read(tmp_path, decoding=Decoding(memory=1, workers=workers))
    with pytest.raises(UsageError) as caught:
        [list(sweep(data.part(role), 2)) for role in Role]
    assert str(caught.value).startswith(f"{path}: is not a readable image")
    assert "\n" not in str(caught.value)
    mended = read(tmp_path, decoding=Decoding(memory=1, skip_broken=True, workers=workers))
    assert sum(len(batch.x) for role in Role for batch in sweep(mended.part(role), 2)) == 7
