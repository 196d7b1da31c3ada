"""TinyImageNet-200 from a folder in exactly its official form."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from references.official import write_tiny_imagenet
from splitveil.check import UsageError
from splitveil.data import Part, Role, read


def _pixels(path: Path) -> torch.Tensor:
    return torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1)


def _of(part: Part, label: int) -> torch.Tensor:
    return part.pixels[part.labels == label]


def test_roles_follow_the_official_order(tmp_path: Path) -> None:
    root = write_tiny_imagenet(tmp_path)
    data = read(root)
    wnids = (root / "wnids.txt").read_text().split()
    assert data.classes == tuple(wnids)
    assert data.image_shape == (3, 64, 64)
    assert [len(data.part(role)) for role in Role] == [30, 6, 6, 6]
    for label, wnid in enumerate(wnids):
        files = [root / "train" / wnid / "images" / f"{wnid}_{k}.JPEG" for k in range(12)]  # 10 comes after 9
        assert torch.equal(_of(data.train, label), torch.stack([_pixels(path) for path in files[:10]]))
        assert torch.equal(_of(data.selection, label), torch.stack([_pixels(path) for path in files[10:]]))
        tested = [root / "val" / "images" / f"val_{k}.JPEG" for k in range(label, 12, 3)]
        assert torch.equal(_of(data.auxiliary, label), torch.stack([_pixels(path) for path in tested[:2]]))
        assert torch.equal(_of(data.victims, label), torch.stack([_pixels(path) for path in tested[2:]]))


def _strange_class(root: Path) -> None:
    table = root / "val" / "val_annotations.txt"
    table.write_text(re.sub(r"n\d+", "n99999999", table.read_text(), count=1))


def _no_image(root: Path) -> None:
    (root / "val" / "images" / "val_3.JPEG").unlink()


def _no_class(root: Path) -> None:
    wnid = (root / "wnids.txt").read_text().split()[1]
    (root / "train" / wnid).rename(root / "elsewhere")


def _cut_image(root: Path) -> None:
    path = root / "val" / "images" / "val_5.JPEG"
    path.write_bytes(path.read_bytes()[:500])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda root: (root / "wnids.txt").write_text(""), "wnids.txt: does not list different classes"),
        (
            lambda root: (root / "val" / "val_annotations.txt").unlink(),
            "val_annotations.txt: no such file; unpack tiny",
        ),
        (_strange_class, "val_annotations.txt: line 1 names no class of wnids.txt"),
        (_no_class, "images: no such folder; unpack tiny-imagenet-200.zip"),
        (_no_image, "val_3.JPEG: is not a readable image (No such file"),
        (_cut_image, "val_5.JPEG: is not a readable image"),
    ],
)
def test_bad_folders_are_told_in_one_line(tmp_path: Path, damage: object, message: str) -> None:
    root = write_tiny_imagenet(tmp_path)
    damage(root)
    with pytest.raises(UsageError) as caught:
        read(root)
    assert message in str(caught.value).replace("[Errno 2] ", "")
    assert "\n" not in str(caught.value)
