"""Archives that cannot be used: one line each, and nothing is ever unpickled."""

import lzma
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from splitveil.check import UsageError
from splitveil.data.archive import expand, load_arrays


class Bomb:
    """An object whose unpickling would be noticed."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("exploded"),)


def _good(folder: Path) -> Path:
    path = folder / "good.npz"
    np.savez(path, a=np.arange(50), b=np.array("text"))
    return path


def test_arrays_come_back_as_saved(tmp_path: Path) -> None:
    arrays = load_arrays(_good(tmp_path))
    assert list(arrays) == ["a", "b"]
    assert arrays["a"].tolist() == list(range(50))
    assert str(arrays["b"]) == "text"


def test_pickled_objects_are_refused_and_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "evil.npz", a=np.array([Bomb()], dtype=object))
    with pytest.raises(UsageError, match=r"evil\.npz: .*pickled objects are refused"):
        load_arrays(tmp_path / "evil.npz")
    assert not (tmp_path / "exploded").exists()


def _text(path: Path) -> None:
    path.write_text("not an archive at all")


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _bare(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.arange(3))


def _folder(path: Path) -> None:
    path.mkdir()


def _foreign_member(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_text, "is not an .npz of plain arrays"),
        (_empty, "is truncated or corrupt"),
        (_bare, "holds one bare array"),
        (_folder, "is not a file"),
        (_foreign_member, "entry 'readme.txt' is not an array"),
        (lambda path: None, "no such file"),
    ],
)
def test_what_is_no_archive_is_named(tmp_path: Path, make: object, message: str) -> None:
    path = tmp_path / "wrong.npz"
    make(path)
    with pytest.raises(UsageError) as caught:
        load_arrays(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(0, 255))
def test_damage_anywhere_is_told_or_harmless(tmp_path: Path, place: float, flip: int) -> None:
    good = load_arrays(_good(tmp_path))
    content = bytearray(_good(tmp_path).read_bytes())
    cut = int(place * len(content))
    damaged = content[:cut] if flip == 0 else content[:cut] + bytes([content[cut] ^ flip]) + content[cut + 1 :]
    (tmp_path / "damaged.npz").write_bytes(damaged)
    try:
        arrays = load_arrays(tmp_path / "damaged.npz")
    except UsageError as error:
        assert "damaged.npz" in str(error)  # noqa: PT017 — both outcomes are right, each in its own way
    else:  # a byte nobody reads: a time stamp, a name, a flag
        assert all(np.array_equal(a, b) for a, b in zip(arrays.values(), good.values(), strict=False))


def test_truncated_stream_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="its xz stream is truncated or corrupt"):
        expand(tmp_path / "x.npz", lzma.compress(bytes(1000))[:-20])
