"""Folders of images: classes, sizes, broken files, roles, people."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from references.official import save_noise
from splitveil.check import UsageError
from splitveil.data import UNLABELED, Decoding, ImageSet, Role, read

RNG = np.random.default_rng(1)


def _fill(root: Path, counts: dict[str, int], *, size: tuple[int, int] = (6, 6), mode: str = "RGB") -> Path:
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for k in range(count):
            save_noise(root / name / f"{k:02}.png", RNG, size=size, mode=mode)
    return root


def test_classes_are_folders_in_the_order_of_their_names(tmp_path: Path) -> None:
    data = read(_fill(tmp_path / "pets", {"dog": 20, "cat": 20}))
    assert data.name == "pets"
    assert data.classes == ("cat", "dog")
    assert data.image_shape == (3, 6, 6)
    assert [len(data.part(role)) for role in Role] == [24, 8, 2, 6]
    stored = {
        np.array(Image.open(path)).transpose(2, 0, 1).tobytes(): path.parent.name for path in tmp_path.rglob("*.png")
    }
    for role in Role:
        part = data.part(role)
        names = [stored[row.numpy().tobytes()] for row in part.pixels]
        assert names == [data.classes[label] for label in part.labels]


def test_all_gray_folders_stay_gray_and_mixed_ones_become_color(tmp_path: Path) -> None:
    _fill(tmp_path / "gray", {"a": 8, "b": 8}, mode="L")
    assert read(tmp_path / "gray").image_shape == (1, 6, 6)
    save_noise(tmp_path / "gray" / "a" / "color.png", RNG, size=(6, 6))
    assert read(tmp_path / "gray").image_shape == (3, 6, 6)
    assert read(tmp_path / "gray", decoding=Decoding(channels=1)).image_shape == (1, 6, 6)


def test_files_that_are_no_images_are_passed_over(tmp_path: Path) -> None:
    root = _fill(tmp_path / "pets", {"dog": 8, "cat": 8})
    before = read(root).sha256
    (root / "dog" / "notes.txt").write_text("good dog")
    (root / "dog" / ".hidden.jpg").write_text("none")
    (root / "readme.md").write_text("pets")
    (root / "meta").write_text("a file of CIFAR-100 has this name")
    assert read(root).sha256 == before


def test_different_sizes_need_one_size(tmp_path: Path) -> None:
    root = _fill(tmp_path / "pets", {"dog": 8, "cat": 8})
    save_noise(root / "dog" / "odd.png", RNG, size=(9, 7))
    with pytest.raises(UsageError, match=r"odd\.png: is 9×7 where cat/00\.png is 6×6; give one size for all"):
        read(root)
    assert read(root, decoding=Decoding(size=4)).image_shape == (3, 4, 4)


def _break(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.write_bytes(path.read_bytes()[:60])


def test_broken_images_are_named_and_skipped_only_on_demand(tmp_path: Path) -> None:
    root = _fill(tmp_path / "pets", {"dog": 10, "cat": 10})
    _break(root, "dog/03.png")
    (root / "cat" / "04.png").write_text("no image")
    with pytest.raises(UsageError) as caught:
        read(root)
    text = str(caught.value)
    assert text.startswith("2 broken images: ")
    assert "cat/04.png: is not a readable image (unknown format)" in text
    assert "dog/03.png: is not a readable image" in text
    assert "skip" in text
    assert "\n" not in text
    data = read(root, decoding=Decoding(skip_broken=True))
    assert sum(len(data.part(role)) for role in Role) == 18
    assert data.notes[0].startswith("skipped: 2 broken images: ")


def test_many_broken_images_are_counted(tmp_path: Path) -> None:
    root = _fill(tmp_path / "pets", {"dog": 10, "cat": 10})
    _break(root, *(f"dog/0{k}.png" for k in range(7)))
    with pytest.raises(UsageError, match=r"7 broken images: .* and 4 more"):
        read(root)


def test_nothing_but_broken_images_is_refused(tmp_path: Path) -> None:
    root = _fill(tmp_path / "pets", {"dog": 2})
    for path in (root / "dog").iterdir():
        path.write_text("no image")
    with pytest.raises(UsageError, match="none of its images can be read"):
        read(root, decoding=Decoding(skip_broken=True))


def test_empty_class_is_named(tmp_path: Path) -> None:
    root = _fill(tmp_path / "pets", {"dog": 4, "cat": 4})
    (root / "fish").mkdir()
    with pytest.raises(UsageError, match="fish: has no images in it"):
        read(root)


def test_folder_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no image set"):
        read(tmp_path)


def test_copies_in_a_folder_are_dropped(tmp_path: Path) -> None:
    root = _fill(tmp_path / "pets", {"dog": 10, "cat": 10})
    (root / "dog" / "again.png").write_bytes((root / "dog" / "00.png").read_bytes())
    assert read(root).notes == ("1 exact copies dropped",)


def _role_folders(root: Path) -> Path:
    for role in Role:
        _fill(root / role, {"cat": 3, "dog": 3})
    return root


def test_roles_may_be_folders(tmp_path: Path) -> None:
    data = read(_role_folders(tmp_path / "pets"))
    assert data.classes == ("cat", "dog")
    assert [len(data.part(role)) for role in Role] == [6, 6, 6, 6]
    first = torch.from_numpy(np.array(Image.open(tmp_path / "pets" / "victims" / "dog" / "00.png"))).permute(2, 0, 1)
    assert torch.equal(data.victims.pixels[data.victims.labels == 1][0], first)


def test_auxiliary_folder_may_show_other_classes(tmp_path: Path) -> None:
    root = _role_folders(tmp_path / "pets")
    _fill(root / "auxiliary", {"fish": 2})
    assert set(read(root).auxiliary.labels.tolist()) == {UNLABELED}
    _fill(root / "victims", {"fish": 2})
    with pytest.raises(UsageError, match="fish: is a class that train does not have"):
        read(root)


def test_labels_follow_train_where_a_role_lacks_a_class(tmp_path: Path) -> None:
    root = _role_folders(tmp_path / "pets")
    for path in (root / "victims" / "cat").iterdir():
        path.unlink()
    (root / "victims" / "cat").rmdir()
    assert set(read(root).victims.labels.tolist()) == {1}


def _strangers(data: ImageSet) -> bool:
    return not set(data.selection.labels.tolist()) & set(data.victims.labels.tolist())


def test_people_of_a_folder_are_set_aside_for_the_attacker(tmp_path: Path) -> None:
    root = _fill(tmp_path / "faces", {f"person{k}": 8 for k in range(10)})
    data = read(root, people=True)
    assert data.people
    assert data.n_classes == 8
    assert len(data.auxiliary) == 16
    assert set(data.auxiliary.labels.tolist()) == {UNLABELED}
    assert _strangers(data)


def test_people_of_another_folder_must_be_others(tmp_path: Path) -> None:
    root = _fill(tmp_path / "faces", {f"person{k}": 8 for k in range(4)})
    others = _fill(tmp_path / "others", {f"stranger{k}": 1 for k in range(5)})
    data = read(root, people=True, roles={"auxiliary": others})
    assert data.n_classes == 4
    assert len(data.auxiliary) == 5
    assert _strangers(data)
    _fill(tmp_path / "others", {"person2": 1})
    with pytest.raises(UsageError, match="others shows 1 people of faces, such as /person2"):
        read(root, people=True, roles={"auxiliary": others})


def test_role_folders_with_shared_people_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="auxiliary and victims of set 'pets' show 2 of the same people"):
        read(_role_folders(tmp_path / "pets"), people=True)


def test_roles_from_sources_with_other_classes_are_refused(tmp_path: Path) -> None:
    root = _fill(tmp_path / "pets", {"cat": 8, "dog": 8})
    other = _fill(tmp_path / "fruits", {"fig": 4, "plum": 4})
    with pytest.raises(UsageError, match="role victims from fruits: its classes are not those of pets"):
        read(root, roles={"victims": other})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "size must be ≥ 1"),
        ({"channels": 2}, "channels must be 1"),
        ({"memory": 0}, "memory must be > 0"),
        ({"workers": -1}, "workers must be ≥ 0"),
    ],
)
def test_impossible_decodings_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Decoding(**settings)
