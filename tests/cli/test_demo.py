"""`splitveil demo` clears what a demo wrote, and nothing else."""

from pathlib import Path

import pytest

from splitveil.check import UsageError
from splitveil.cli import demo
from splitveil.cli.demo import CLIENTS, MARK, SUITE


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """What a demo leaves."""
    out = tmp_path / "demo"
    for name in CLIENTS:
        (out / name / "attacks" / SUITE).mkdir(parents=True)
        (out / name / "attacks" / SUITE / "result.json").write_text("{}")
        (out / name / "config.yaml").write_text("data: {}\n")
    (out / MARK).touch()
    return out


def test_an_earlier_demo_is_cleared(earlier: Path) -> None:
    demo._clear(earlier)
    assert not earlier.exists()


@pytest.mark.parametrize("added", ["mine/notes.txt", "protected/attacks/standard/result.json", "notes.txt"])
def test_what_was_added_to_it_is_kept(earlier: Path, added: str) -> None:
    (earlier / added).parent.mkdir(parents=True, exist_ok=True)
    (earlier / added).write_text("mine")
    with pytest.raises(UsageError, match="was added to an earlier demo; move it away, or choose another --out"):
        demo._clear(earlier)
    assert (earlier / added).read_text() == "mine"
    assert (earlier / "protected" / "config.yaml").exists()


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match="holds something else than an earlier demo"):
        demo._clear(tmp_path)
    demo._clear(tmp_path / "nothing yet")
