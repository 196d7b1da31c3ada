"""What the README's commands take: each in a process of its own, from its start to its last word.

    python benchmarks/commands.py --out results/commands-cpu.json

A clock of the wall, on whatever machine this is: the JSON says which. Nothing else should run beside it.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from measuring import publish

from splitveil.cli.runs import environment

COMMANDS = {  # one after another, and what each is promised to take at most, in seconds
    "splitveil demo --quick --out runs/quick": 90,
    "splitveil demo": 240,
    "splitveil attack runs/demo/protected --suite cheap": 90,
}


def measure(command: str, folder: Path) -> float:
    """Seconds of one command in this folder, where nothing was attacked yet."""
    shutil.rmtree(folder / "runs" / "demo" / "protected" / "attacks", ignore_errors=True)
    began = time.perf_counter()
    words = [sys.executable, "-m", *command.split(), "--quiet"]
    subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return round(time.perf_counter() - began, 1)


def main() -> None:
    """Time them one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        taken = {each: {"seconds": measure(each, Path(folder)), "at_most": most} for each, most in COMMANDS.items()}
    facts = {"cores": os.cpu_count(), "threads": torch.get_num_threads(), "environment": environment()}
    publish({"command": "python benchmarks/commands.py", "commands": taken, **facts}, words.out)


if __name__ == "__main__":
    main()
