"""Make docs/demo.png from the runs of `splitveil demo`: originals, and what the best attack on one release rebuilds.

splitveil demo --out runs/demo && python tools/make_demo_picture.py runs/demo docs/demo.png
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from splitveil.evaluation import Result

CLIENTS = ("undefended", "protected")
SHOWN = 8  # victims, those nearest the median error of the protected client


def main(runs: Path, target: Path) -> None:
    """One row of originals, one row for each client."""
    reconstructions = {name: load(runs / name / "attacks" / "cheap") for name in CLIENTS}
    rows = [("private image", None)] + [(name, reconstructions[name]) for name in CLIENTS]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(len(rows), SHOWN)
    first = reconstructions[CLIENTS[0]]
    for line, (name, found) in zip(axes, rows, strict=True):
        images = first["x"] if found is None else found["x_hat"]
        for axis, image in zip(line, images[:SHOWN], strict=False):
            axis.imshow(image[0], cmap="gray", vmin=0, vmax=255)
            axis.set_xticks([])
            axis.set_yticks([])
        caption = name if found is None else f"rebuilt from the\n{name} client\nleak {found['leak']:.2f}"
        line[0].set_ylabel(caption, rotation=0, ha="right", va="center", fontsize=9)
    figure.savefig(target, dpi=120)


def load(directory: Path) -> dict[str, np.ndarray]:
    """Samples of the strongest attack that sees one release."""
    result = Result.load(directory / "result.json")
    best = result.attack(result.headline_one_release)
    slug = f"{best.attack}--{best.knowledge.replace(' ', '-').replace(',', '')}"
    with np.load(next((directory / "attacks").glob(f"{slug}-seed*.npz"))) as arrays:
        return {**{name: arrays[name] for name in arrays.files}, "leak": np.float64(best.leak.mean)}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
