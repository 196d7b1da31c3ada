"""Bring about every kind of wrong input we know and print the one line each gives, as Markdown.

python tools/wrong_inputs.py > docs/wrong-inputs.md
"""

import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from splitveil.cli.main import run
from worlds.wrong_files import make_files
from worlds.wrong_inputs import EVERY, SECTIONS, Wrong

HEAD = f"""# Wrong inputs

{len(EVERY)} kinds, each with the line it gives on stderr and its exit code: 2 for wrong use, 3 for a run that could not
go on. There is never a traceback, and nothing is left half-written. `tests/cli/test_wrong_inputs.py` holds this table
to its word; `python tools/wrong_inputs.py` prints it anew.
"""


def call(*words: str) -> tuple[int, str]:
    """Exit code and stderr of one command."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            run(words)
        except SystemExit as stop:
            return int(stop.code or 0), said.getvalue().strip()
    raise AssertionError("the command line always says how it ended")


def row(wrong: Wrong) -> str:
    """One kind as a row."""
    os.environ["WORLD_SIZE"] = str(wrong.ranks)
    code, line = call(*wrong.words)
    assert code == wrong.code, line
    assert wrong.says in line, line
    told = line.removeprefix("error: ").replace("|", "\\|")
    return f"| {wrong.name} | {told} | {code} |"


def main() -> None:
    """The command."""
    sys.stdout.write(HEAD)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        make_files(Path(folder), call)
        for title, section in SECTIONS.items():
            rows = "\n".join(row(wrong) for wrong in section)
            sys.stdout.write(f"\n## {title}\n\n| what is wrong | what is said | exit code |\n|---|---|---:|\n{rows}\n")
        os.chdir("/")


if __name__ == "__main__":
    main()
