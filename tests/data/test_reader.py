"""Any source by its name or path; roles from elsewhere; faces without shared people."""

from pathlib import Path

import numpy as np
import pytest

from references.packs import save_med
from references.shared import PACKS, needs_packs
from splitveil.check import UsageError
from splitveil.data import UNLABELED, Decoding, Role, fashion, read

RNG = np.random.default_rng(3)


def _faces(folder: Path, name: str, labels: np.ndarray) -> Path:
    images = RNG.integers(0, 256, (len(labels), 4, 4, 3), dtype=np.uint8)
    return save_med(folder / f"{name}.npz", images, labels.astype(np.int16))


@pytest.fixture
def faces(tmp_path: Path) -> Path:
    """Four people with eight photos each, and six others beside them."""
    _faces(tmp_path, "lfw64-aux", np.arange(10, 16))
    return _faces(tmp_path, "lfw64-a", np.repeat(np.arange(4), 8))


def test_embedded_set_has_a_name() -> None:
    assert read("fashion").sha256 == fashion().sha256


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("fasion", "did you mean 'fashion'?"),
        ("nowhere.npz", "nowhere.npz: no such file"),
        ("photo.jpg", "no such set or file"),
        (".", "holds no image set"),
    ],
)
def test_unknown_sources_are_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        read(source)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_pack_is_dealt_out(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (40, 3, 3), dtype=np.uint8)
    data = read(save_med(tmp_path / "shapes.npz", images, np.arange(40) % 2))
    assert data.name == "shapes"
    assert [len(data.part(role)) for role in Role] == [24, 8, 2, 6]


def test_face_packs_take_their_auxiliary_people_from_beside(faces: Path) -> None:
    data = read(faces)
    assert data.people
    assert data.notes == ("auxiliary from lfw64-aux",)
    assert data.auxiliary.labels.tolist() == [UNLABELED] * 6
    assert set(data.victims.labels.tolist()) == {0, 2}
    assert set(data.selection.labels.tolist()) == {1, 3}
    assert set(data.train.labels.tolist()) == {0, 1, 2, 3}
    assert [len(data.part(role)) for role in Role] == [24, 6, 4, 4]


def test_face_pack_without_other_people_is_refused(faces: Path) -> None:
    (faces.parent / "lfw64-aux.npz").unlink()
    with pytest.raises(UsageError, match=r"lfw64-a\.npz: needs auxiliary images of other people"):
        read(faces)


def test_auxiliary_source_with_the_same_people_is_refused(faces: Path, tmp_path: Path) -> None:
    same = _faces(tmp_path, "lfw64-b", np.array([3, 4, 5]))
    with pytest.raises(UsageError, match="lfw64-b shows 1 people of lfw64-a, such as lfw64/3"):
        read(faces, roles={"auxiliary": same})


def test_a_role_comes_from_another_source(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (40, 28, 28), dtype=np.uint8)
    other = save_med(tmp_path / "other.npz", images, np.arange(40) % 20)
    data = read("fashion", roles={"auxiliary": other})
    assert len(data.auxiliary) == 40
    assert set(data.auxiliary.labels.tolist()) == {UNLABELED}
    assert data.notes == ("auxiliary from other",)
    assert len(data.train) == 12_000


def test_a_source_with_roles_gives_its_own_images_of_that_role(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (40, 28, 28), dtype=np.uint8)
    mine = save_med(tmp_path / "mine.npz", images, np.arange(40) % 2)
    auxiliary = read(mine, roles={"auxiliary": "fashion"}).auxiliary
    assert len(auxiliary) == 5_000
    assert set(auxiliary.labels.tolist()) == {UNLABELED}  # its classes are not mine


def test_unknown_role_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'victims'"):
        read("fashion", roles={"victim": "fashion"})


def test_another_image_size_is_refused(faces: Path) -> None:
    with pytest.raises(UsageError, match="role auxiliary of set 'fashion' has images of shape"):
        read("fashion", roles={"auxiliary": faces})


@pytest.mark.slow
@needs_packs("facescrub12-64.npz", "lfw64-a.npz", "lfw64-aux.npz")
@pytest.mark.parametrize(("name", "n_people", "n_images"), [("facescrub12-64", 12, 1597), ("lfw64-a", 62, 3023)])
def test_real_face_packs_give_strangers(name: str, n_people: int, n_images: int) -> None:
    data = read(PACKS / f"{name}.npz")
    assert data.people
    assert data.n_classes == n_people
    assert len(data.auxiliary) == 4_000
    assert sum(len(data.part(role)) for role in (Role.TRAIN, Role.SELECTION, Role.VICTIMS)) == n_images
    assert not set(data.selection.labels.tolist()) & set(data.victims.labels.tolist())


@pytest.mark.parametrize("how", [Decoding(size=14), Decoding(channels=3)])
def test_arrays_are_not_decoded_in_another_way(how: Decoding, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", images=rng.integers(0, 256, (80, 28, 28), dtype=np.uint8), labels=np.arange(80) % 2)
    for source in ("fashion", tmp_path / "own.npz"):
        with pytest.raises(UsageError, match=r"holds images of 1×28×28, which are not decoded .* leave size"):
            read(source, decoding=how)
        assert read(source, decoding=Decoding(size=28, channels=1)).image_shape == (1, 28, 28)


def test_clothes_are_no_people() -> None:
    with pytest.raises(UsageError, match="of the same people"):
        read("fashion", people=True)
