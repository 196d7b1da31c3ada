"""Every kind of wrong input gives one line and its exit code, and leaves nothing half-written."""

import os
import shutil
from pathlib import Path

import pytest

from splitveil.cli.main import run
from worlds.finished_runs import Said
from worlds.wrong_files import make_files
from worlds.wrong_inputs import EVERY, Wrong

pytestmark = pytest.mark.xdist_group("wrong inputs")
TABLE = Path(__file__).parents[2] / "docs" / "wrong-inputs.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that can be wrong."""
    folder = tmp_path_factory.mktemp("wrong")
    before = Path.cwd()
    os.chdir(folder)
    try:
        make_files(folder, lambda *words: _exit_code(words))
    finally:
        os.chdir(before)
    return folder


def _exit_code(words: tuple[str, ...]) -> int:
    try:
        run(words)
    except SystemExit as stop:
        return int(stop.code or 0)
    raise AssertionError("the command line always says how it ended")


def contents(folder: Path) -> dict[str, int]:
    """Every file and when it was written."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("wrong", EVERY, ids=lambda wrong: wrong.name)
def test_wrong_input_gives_one_line_and_leaves_nothing(
    folder: Path, wrong: Wrong, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("WORLD_SIZE", str(wrong.ranks))
    before = contents(folder)
    capsys.readouterr()
    said = Said(_exit_code(wrong.words), *capsys.readouterr())
    if wrong.leaves is not None:
        shutil.rmtree(folder / wrong.leaves)
    assert said.code == wrong.code, said
    assert wrong.says in said.err
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1, said.err
    assert not said.out
    assert contents(folder) == before


def test_there_are_at_least_forty_kinds_and_none_stands_twice() -> None:
    assert len(EVERY) >= 40
    assert len({wrong.name for wrong in EVERY}) == len(EVERY)
    assert len({(wrong.words, wrong.ranks) for wrong in EVERY}) == len(EVERY)


def test_the_page_in_docs_has_every_kind() -> None:
    rows = [line.split("|")[1].strip() for line in TABLE.read_text().splitlines() if line.startswith("| ")]
    assert [name for name in rows if name != "what is wrong"] == [wrong.name for wrong in EVERY]
