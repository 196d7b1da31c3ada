"""Kill a run with every regularizer twenty times, resume it each time, and compare it with one that was left alone.

python tools/kill_table.py --out results/kills.json
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from splitveil.cli.catalog import REGULARIZERS
from splitveil.cli.runs import environment
from worlds.sittings import RESUME, RUN, Kill, differences, kill_and_resume, start_cold, words, write_images


def killed(folder: Path, *, kills: int, epochs: int, seed: int) -> tuple[list[Kill], list[str]]:
    """The kills, and where the run then differs from one that was not killed."""
    write_images(folder / "images.npz")
    _finish(words(tuple(REGULARIZERS), epochs=epochs, out="whole"), folder)
    seen = kill_and_resume(start_cold, words(tuple(REGULARIZERS), epochs=epochs), folder, kills=kills, seed=seed)
    _finish(RESUME, folder)
    return seen, differences(folder / "whole", folder / RUN)


def table(seen: list[Kill]) -> str:
    """The kills in Markdown."""
    rows = [
        f"| {i} | {kill.moment} | {kill.seconds:.1f} | {kill.epochs_kept} | {', '.join(kill.half_written) or '–'} |"
        for i, kill in enumerate(seen, start=1)
    ]
    head = ["| kill | moment | seconds after the start | epochs kept | left half-written |", "|---:|---|---:|---:|---|"]
    return "\n".join([*head, *rows])


def _finish(arguments: Sequence[str], folder: Path) -> None:
    code, said = start_cold(arguments, folder).end(within=600)
    if code:
        sys.exit(said)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seen, differing = killed(Path(folder), kills=asked.kills, epochs=asked.epochs, seed=asked.seed)
    sys.stdout.write(f"{table(seen)}\n\n")
    sys.stdout.write(f"after {len(seen)} kills, {len(differing)} differences from a run that was left alone\n")
    if asked.out is not None:
        result = {
            "command": f"python tools/kill_table.py --kills {asked.kills} --epochs {asked.epochs} --seed {asked.seed}",
            "regularizers": list(REGULARIZERS),
            "kills": [asdict(kill) for kill in seen],
            "differences": differing,
            "environment": environment(),
        }
        asked.out.write_text(json.dumps(result, indent=2) + "\n")
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
