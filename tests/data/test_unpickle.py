"""Pickles are read, never run."""

import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from references.official import python2_pickle
from splitveil.check import UsageError
from splitveil.data.unpickle import read_pickle


def _write(folder: Path, content: bytes) -> Path:
    (folder / "batch").write_bytes(content)
    return folder / "batch"


CONTENT = {"labels": [3, 0], "data": np.arange(6, dtype=np.uint8).reshape(2, 3), "batch_label": "one of 5"}


def _same(got: dict[str, Any]) -> bool:
    return got["labels"] == [3, 0] and np.array_equal(got["data"], CONTENT["data"]) and got["batch_label"] == "one of 5"


def test_what_python2_wrote_is_read(tmp_path: Path) -> None:
    assert _same(read_pickle(_write(tmp_path, python2_pickle(CONTENT))))


def test_reference_writer_writes_what_pickle_reads() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # numpy.core has another name today
        assert _same(pickle.loads(python2_pickle(CONTENT), encoding="latin-1"))


def test_what_python3_writes_in_protocol_2_is_read(tmp_path: Path) -> None:
    assert _same(read_pickle(_write(tmp_path, pickle.dumps(CONTENT, protocol=2))))


@pytest.mark.parametrize("dtype", ["u1", "<i2", ">i4", "<i8"])
def test_number_types_keep_their_values(tmp_path: Path, dtype: str) -> None:
    numbers = np.array([[1, 2], [3, 100]], dtype)
    assert read_pickle(_write(tmp_path, python2_pickle({"a": numbers})))["a"].tolist() == numbers.tolist()


class Evil:
    """Calls something when it is unpickled."""

    def __init__(self, call: Any, *args: Any) -> None:
        self.call, self.args = call, args

    def __reduce__(self) -> Any:
        return self.call, self.args


@pytest.mark.parametrize(
    ("evil", "name"),
    [
        (Evil(os.system, "touch exploded"), "posix.system|nt.system"),
        (Evil(eval, "open('exploded', 'w')"), "builtins.eval|__builtin__.eval"),
        (Evil(getattr, "x", "upper"), "getattr"),
        (Evil(Path, "x"), "pathlib"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_programs_are_refused_and_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evil: Evil, name: str, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    path = _write(tmp_path, pickle.dumps({"data": evil}, protocol=protocol))
    with pytest.raises(UsageError, match=rf"batch: .*({name}).*refused"):
        read_pickle(path)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps([1, 2]), "holds a list, wanted a dictionary"),
        (pickle.dumps({"a": {1, 2}}), "holds a set, which is refused"),
        (pickle.dumps({"a": np.array(["x"])}, protocol=2), "arrays of type 'U1' are refused"),
        (pickle.dumps({"a": np.array([None])}, protocol=2), "arrays of type 'O8' are refused"),
        (pickle.dumps({"a": np.zeros(3)}, protocol=2), "arrays of type 'f8' are refused"),
        (b"", "is truncated"),
        (b"PK\x03\x04 not a pickle", "is truncated, corrupt or no plain pickle"),
    ],
)
def test_other_contents_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_pickle(_write(tmp_path, content))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_array_with_too_few_bytes_is_refused(tmp_path: Path) -> None:
    content = python2_pickle({"a": np.zeros((4, 5), np.uint8)}).replace(b"U\x14" + bytes(20), b"U\x13" + bytes(19))
    with pytest.raises(UsageError, match=r"an array of shape \(4, 5\) has 19 numbers"):
        read_pickle(_write(tmp_path, content))


def test_memory_bomb_is_refused(tmp_path: Path) -> None:
    """LONG_BINPUT at place 4 billion: Python's own reader would set aside 64 GB for it."""
    with pytest.raises(UsageError, match="asks for more memory than it can use"):
        read_pickle(_write(tmp_path, b"\x80\x02}r\xff\xff\xff\xff."))


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(0, 255))
@example(place=0.23828125, flip=41)  # an escape that does not exist
def test_damage_anywhere_is_told_or_gives_plain_values(tmp_path: Path, place: float, flip: int) -> None:
    content = bytearray(python2_pickle(CONTENT))
    cut = int(place * len(content))
    damaged = content[:cut] if flip == 0 else content[:cut] + bytes([content[cut] ^ flip]) + content[cut + 1 :]
    path = _write(tmp_path, bytes(damaged))
    try:
        values = read_pickle(path).values()
    except UsageError as error:
        assert str(error).startswith(f"{path}: ")  # noqa: PT017 — both outcomes are right, each in its own way
    else:
        assert all(isinstance(value, str | int | float | list | dict | np.ndarray | None) for value in values)
