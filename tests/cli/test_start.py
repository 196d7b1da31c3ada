"""What a command costs before it does anything."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

MOST_SECONDS = 1.0  # half a second is meant; a loaded machine may take longer
MOST_MIB = 80  # torch alone would take 200
STATUS = Path("/proc/self/status")


def test_help_comes_at_once() -> None:
    tries = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "splitveil.cli.main", "--help"], check=True, stdout=subprocess.DEVNULL)
        tries.append(time.perf_counter() - began)
    assert min(tries) < MOST_SECONDS


@pytest.mark.skipif(not STATUS.exists(), reason="the system does not tell a process how much memory it held")
def test_help_is_light() -> None:
    peak = f"next(line for line in open({str(STATUS)!r}) if line.startswith('VmHWM'))"
    code = f"import atexit, sys; atexit.register(lambda: sys.stderr.write({peak})); "
    code += "from splitveil.cli.main import run; run(['--help'])"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stderr
    assert int(said.split()[1]) / 1024 < MOST_MIB


def test_settings_are_read_without_the_training_framework() -> None:
    code = "import sys, splitveil.cli.train; sys.exit('lightning_fabric' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
