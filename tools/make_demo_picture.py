"""Make docs/demo.png from the runs of `splitveil demo`: the same victims, as a decoder rebuilds them from each client.

    splitveil demo --out runs/demo && python tools/make_demo_picture.py runs/demo docs/demo.png

The attack is the cheap suite's decoder, one release of each image; the leak in the caption is that attack's.
"""

import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from splitveil.attacks import Seen, Threat, grant, oracle_of
from splitveil.cli.runs import Run, open_run
from splitveil.evaluation import Result, suite_named
from splitveil.randomness import SeededSource

CLIENTS = ("undefended", "protected")
SHOWN = 10  # the first victims: nobody chose them
ATTACK = "decoder-conv"


def main(runs: Path, target: Path) -> None:
    """One row of originals, one row for each client."""
    opened = {name: open_run(runs / name) for name in CLIENTS}
    x = opened[CLIENTS[0]].data.victims.images(slice(SHOWN))
    rows = {"private image": x}
    for name, run in opened.items():
        result = Result.load(run.directory / "attacks" / "cheap" / "result.json")
        leak = next(a.leak.mean for a in result.attacks if a.attack == ATTACK)
        rows[f"rebuilt from the\n{name} client\nleak {leak:.2f}"] = rebuild(run, x)
    draw(rows).savefig(target, dpi=120)


@torch.no_grad()
def rebuild(run: Run, x: Tensor) -> Tensor:
    """What the cheap decoder makes of one release of each image."""
    attack = next(trial.attack for trial in suite_named("cheap").trials if trial.attack.name == ATTACK)
    client, data = run.split.client, run.data
    known = grant(Threat(), oracle=oracle_of(client), auxiliary=data.auxiliary, selection=data.selection)
    with torch.enable_grad():
        inverter = attack.fit(known, seed=0)
    z_sent = client(x, source=SeededSource(0, "picture"))
    return inverter(Seen(z_sent[None], None))


def draw(rows: dict[str, Tensor]) -> Figure:
    """Captions at the left, images in columns."""
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    for line, (caption, images) in zip(figure.subplots(len(rows), SHOWN), rows.items(), strict=True):
        line[0].set_ylabel(caption, rotation=0, ha="right", va="center", fontsize=9)
        for axis, image in zip(line, images, strict=True):
            axis.imshow(image[0], cmap="gray", vmin=0, vmax=1)
            axis.set_xticks([])
            axis.set_yticks([])
    return figure


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
