"""Image packs kept beside a checkout, for the tests that measure the real ones; absent elsewhere."""

from pathlib import Path

import pytest

PACKS = Path(__file__).parents[3] / "shared" / "data"


def needs_packs(*names: str) -> pytest.MarkDecorator:
    """Skip where one of the named packs is absent."""
    absent = [name for name in names if not (PACKS / name).exists()]
    return pytest.mark.skipif(bool(absent), reason=f"no {', '.join(absent)} in ../shared/data")
