"""Who may import whom: the table of docs/architecture.md, read from the source with `ast`."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "splitveil"

BASE = {"types", "randomness", "check", "mixtures", "fitting", "pausing", "recording", "writing"}
MAY_IMPORT: dict[str, set[str]] = {
    "dp": set(),
    "metrics": set(),
    "data": set(),
    "networks": set(),
    "mechanisms": {"dp"},
    "private_attention": {"dp"},
    "split": {"mechanisms"},
    "regularizers": {"networks"},
    "bounds": {"dp", "mechanisms", "metrics", "split", "data"},
    "training": {"data", "mechanisms", "networks", "regularizers", "split"},
    "attacks": {"data", "mechanisms", "metrics", "networks", "split"},
    "evaluation": {"attacks", "bounds", "data", "dp", "metrics", "split"},
    "reports": {"evaluation"},
    "runtime": {"dp", "mechanisms", "split", "training"},
}


def imported(path: Path) -> set[str]:
    """Rooms of ours that a file imports, wherever in the file the import stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [
                f"{node.module}.{alias.name}" if node.module == "splitveil" else node.module for alias in node.names
            ]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {str(name).split(".")[1] for name in names if str(name).startswith("splitveil.")}
    return found


def rooms() -> list[str]:
    return sorted(p.name for p in SOURCE.iterdir() if p.is_dir() and p.name not in BASE | {"__pycache__"})


def test_every_room_stands_in_the_table() -> None:
    assert set(rooms()) - {"cli"} <= set(MAY_IMPORT)


@pytest.mark.parametrize("room", [r for r in rooms() if r != "cli"])
def test_a_room_imports_only_what_it_may(room: str) -> None:
    allowed = MAY_IMPORT[room] | BASE | {room}
    for path in sorted((SOURCE / room).rglob("*.py")):
        assert imported(path) <= allowed, f"{path.relative_to(ROOT)} imports {sorted(imported(path) - allowed)}"


def test_the_base_imports_only_the_base() -> None:
    for name in BASE:
        for path in [SOURCE / f"{name}.py", *(SOURCE / name).rglob("*.py")]:
            if path.exists():
                assert imported(path) <= BASE, path


def test_the_table_stands_in_the_documentation() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    for room in rooms():
        assert f"`{room}`" in text, f"docs/architecture.md does not name {room}"


def test_importing_the_package_loads_no_torch() -> None:
    code = "import sys, splitveil, splitveil.cli.main; sys.exit('torch' in sys.modules or 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_curated_name_loads() -> None:
    import splitveil

    for name in splitveil.__all__:
        assert getattr(splitveil, name) is not None
