"""`splitveil diagnose`: what each penalty of a run did over time, as pictures and in one line a penalty.

A surrogate can look well and protect nothing: its attention on one sample, its gates closed, its spread far below its
threshold. Each of these has its own panel.
"""

from pathlib import Path
from typing import Any

import numpy as np

from splitveil.check import UsageError
from splitveil.cli.display import out, print_json
from splitveil.cli.runs import read_run_config
from splitveil.training.log import NAME, read_log

Records = list[dict[str, Any]]

PANELS = {
    "penalty · weight": ("penalty", "weight", "strength"),
    "nats a class: S, I_r, P, L": ("S", "I_r", "P", "L", "charged", "gap"),
    "spread of each class, and τ": ("spread", "threshold"),
    "effective members · dimensions over the hinge": ("effective_members", "over_hinge"),
    "mass of the slots, largest first": ("slot_mass",),
    "gates": ("gate_dimension", "gate_snr", "gate_dims", "gate_hard", "gate_class"),
}
LOW_MEMBERS = 0.1  # of a class: attention this narrow measures a few samples, not the class
NOISY = 0.98  # L is a Monte-Carlo mean
CLOSED = 0.01  # mean gate opening below which nothing is charged


def diagnose(run: Path, *, as_json: bool) -> None:
    """The command."""
    read_run_config(run)
    records = _logged(run)
    if not records:
        raise UsageError(f"{run}: nothing is logged yet; train at least one epoch")
    names = sorted({key.split("/")[0] for record in records for key in record if "/" in key})
    if not names:
        raise UsageError(
            f"{run}: the run has no regularizers; add one with -s 'regularizers=[{{name: plain, weight: 0.1}}]'"
        )
    remarks = {name: remark(name, records) for name in names}
    pictures = {name: str(picture(name, records, run)) for name in names}
    if as_json:
        print_json({name: {"remarks": remarks[name], "picture": pictures[name]} for name in names})
        return
    for name in names:
        out().print(f"[bold]{name}[/]: {'; '.join(remarks[name]) or 'nothing unusual'}")
        out().print(f"  wrote {pictures[name]}", markup=False)


def _logged(run: Path) -> Records:
    try:
        return read_log(run)
    except (OSError, ValueError) as error:
        raise UsageError(f"{run / NAME}: cannot be read ({error}); remove the damaged lines") from None


def series(name: str, gauge: str, records: Records) -> tuple[list[int], np.ndarray]:
    """Epochs and values of one gauge, where it was logged."""
    found = [(r["epoch"] + 1, r[f"{name}/{gauge}"]) for r in records if f"{name}/{gauge}" in r]
    return [epoch for epoch, _ in found], np.array([value for _, value in found], dtype=float)


def remark(name: str, records: Records) -> list[str]:
    """What a reader should know before believing the penalty."""
    last = {gauge: values[-1] for gauge in _gauges() if len(values := series(name, gauge, records)[1])}
    said = []
    if last.get("effective_members", 1.0) < LOW_MEMBERS:
        said.append(f"attention rests on {last['effective_members']:.1%} of a class: it measures a few samples only")
    if last.get("gate_dims", 1.0) < CLOSED:
        said.append(f"gates are {last['gate_dims']:.1e} open: next to nothing is charged")
    if last.get("over_hinge", 1.0) == 0.0:
        said.append("no dimension is over the threshold: the hinge is silent")
    if "charged" in last and "L" in last and last["charged"] < NOISY * last["L"]:
        said.append(f"charges {last['charged']:.1f} nats where the class leaks at least {last['L']:.1f} in sample")
    broken = series(name, "broken", records)[1]
    if len(broken) and broken[-1] > 0:
        said.append(f"{broken[-1]:.0f} steps had no finite penalty")
    return said


def picture(name: str, records: Records, run: Path) -> Path:
    """Every gauge over the epochs, one panel a subject."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 7), layout="constrained")
    figure.suptitle(f"{name} in {run.name}")
    for axis, (title, gauges) in zip(figure.subplots(2, 3).flat, PANELS.items(), strict=True):
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("epoch")
        for gauge in gauges:
            epochs, values = series(name, gauge, records)
            if not len(values):
                continue
            many = values.ndim == 2
            style = {"color": "black", "linestyle": "--"} if gauge == "threshold" else {}
            axis.plot(epochs, values, label=None if many else gauge, alpha=0.6 if many else 1.0, marker=".", **style)
        if axis.get_legend_handles_labels()[1]:
            axis.legend(fontsize=8)
        elif not axis.lines:
            axis.text(0.5, 0.5, "not measured", ha="center", transform=axis.transAxes, color="gray")
    path = run / f"diagnose-{name}.png"
    figure.savefig(path, dpi=110)
    return path


def _gauges() -> list[str]:
    return [gauge for gauges in PANELS.values() for gauge in gauges]
