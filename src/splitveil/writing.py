"""Files that are whole or not there.

with replacing(path) as fresh: write to `fresh`          a killed write leaves what was at `path` before
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path`, with its suffix; what is written there takes its place when the block ends well."""
    fresh = path.with_name(f"{path.stem}.part{path.suffix}")
    yield fresh
    os.replace(fresh, path)


def write_text(path: Path, text: str) -> None:
    """Replace a small file at once."""
    with replacing(path) as fresh:
        fresh.write_text(text, encoding="utf-8")
