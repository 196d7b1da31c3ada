"""Finished runs on smooth images of 8 × 8 pixels, one for each mechanism."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from splitveil.cli.main import run

MECHANISMS = {"noisy": "[{name: gaussian, std: 0.05}]", "silent": "[]"}


class Said(NamedTuple):
    """What a command ended with."""

    code: int
    out: str
    err: str


def make_runs(root: Path, mechanisms: Mapping[str, str] = MECHANISMS) -> None:
    """Train each in the folder of its name in `root`."""
    rng = np.random.default_rng(0)
    arrays = {}
    for role, n in (("train", 64), ("auxiliary", 200), ("selection", 40), ("victims", 64)):
        coarse = rng.integers(0, 256, (n, 2, 2), dtype=np.uint8)
        fine = rng.integers(0, 20, (n, 8, 8), dtype=np.uint8)
        arrays[f"{role}_images"] = coarse.repeat(4, axis=1).repeat(4, axis=2) // 2 + fine
        arrays[f"{role}_labels"] = np.arange(n) % 4
    np.savez(root / "smooth.npz", **arrays)
    for name, mechanism in mechanisms.items():
        settings = (f"data.source={root / 'smooth.npz'}", "training.epochs=1", f"mechanism={mechanism}")
        words = [word for each in (*settings, "training.batch_size=16") for word in ("-s", each)]
        with pytest.raises(SystemExit) as stop:
            run(["train", *words, "--device", "cpu", "--out", str(root / name), "-q"])
        assert not stop.value.code
