"""What is proved of three small clients, beside what quick attacks make of them.

    python benchmarks/bounds.py                 trains and attacks what has no JSON in results/bounds, on one CPU
    python benchmarks/bounds.py --table         the cells as docs/bounds.md has them

A cell is what `splitveil train` and `splitveil attack --suite cheap` wrote for one client of the embedded images.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CELLS = Path(__file__).parent.parent / "results" / "bounds"
RECIPE = ("training.epochs=3", "training.batch_size=128", "training.lr=0.05")
NOISY = 'mechanism=[{"name": "gaussian", "std": 0.1}]'
CLIENTS = {
    "noisy": (NOISY,),
    "plain": (NOISY, 'regularizers=[{"name": "plain", "weight": 1}]'),
    "clipped": ('mechanism=[{"name": "clip", "radius": 1.0}, {"name": "gaussian", "std": 0.5}]',),
}
COLUMNS = ("information", "two points", "van Trees, trace, raw images")


def measure(name: str) -> dict[str, Any]:
    """Train a client, attack it, and return what both commands wrote."""
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / name
        settings = [word for setting in (*CLIENTS[name], *RECIPE) for word in ("-s", setting)]
        command = [sys.executable, "-m", "splitveil"]
        subprocess.run([*command, "train", *settings, "--device", "cpu", "--out", run, "-q"], check=True)
        subprocess.run([*command, "attack", run, "--suite", "cheap", "--device", "cpu", "-q"], check=True)
        found = sorted((run / "attacks").rglob("result.json"))
        return {
            "command": "python benchmarks/bounds.py",
            "training": json.loads((run / "result.json").read_text()),
            "attacks": json.loads(found[0].read_text()),
        }


def table() -> None:
    """Markdown: accuracy, the best bound of each kind and the worst attack, for one release and for sixteen."""
    for path in (CELLS / f"{name}.json" for name in CLIENTS):
        cell = json.loads(path.read_text())
        shown = [f"{cell['training']['accuracy']['victims']:.1%}"]
        for column in COLUMNS:
            best = [_best(cell["attacks"]["bounds"], column, releases) for releases in (1, 16)]
            shown.append(" / ".join("–" if each is None else f"{each:.4g}" for each in best))
        attacks = cell["attacks"]["attacks"]
        worst = [min(each["mse"]["mean"] for each in attacks if each["releases"] <= most) for most in (1, 16)]
        print(f"| {path.stem} | " + " | ".join([*shown, " / ".join(f"{each:.4f}" for each in worst)]) + " |")


def _best(bounds: list[dict[str, Any]], name: str, releases: int) -> float | None:
    found = [each for each in bounds if each["name"].startswith(name) and each["releases"] == releases]
    if not found:
        return None
    values = [float(each["value"]) for each in found]
    return min(values) if found[0]["side"] == "at_most" else max(values)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="print markdown")
    if parser.parse_args().table:
        table()
        return
    for name in CLIENTS:
        path = CELLS / f"{name}.json"
        if not path.exists():
            print(name, flush=True)
            path.write_text(json.dumps(measure(name), indent=1) + "\n")


if __name__ == "__main__":
    main()
