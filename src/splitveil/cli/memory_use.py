"""A private memory on disk → answers, its report, an audit."""

import zipfile
from pathlib import Path

import numpy as np
import torch
import typer

from splitveil.check import UsageError
from splitveil.cli.display import out as stdout
from splitveil.cli.display import print_json
from splitveil.cli.memory_build import read_rows
from splitveil.private_attention import PrivateKV
from splitveil.private_attention.audit import audit_twin, check_numbers

REFUTED = 1  # exit code: a gate failed


def answer_queries(folder: Path, queries: Path, *, out: Path, beta: float | None, as_json: bool) -> None:
    """Write output, stderr, snr and flagged of every query to one .npz."""
    if out.suffix != ".npz":
        raise UsageError(f"--out {out}: answers are several arrays; give a name that ends in .npz")
    memory = PrivateKV.load(folder)
    rows = read_rows(queries)
    if rows.shape[1] != memory.facts.kernel.d:
        raise UsageError(
            f"{queries} must have {memory.facts.kernel.d} columns as the memory's keys, got {rows.shape[1]}"
        )
    with torch.no_grad():
        answer = memory.attend(torch.from_numpy(np.array(rows, dtype=np.float64)), beta=beta)
    arrays = {name: part.numpy() for name, part in answer._asdict().items()}
    try:
        with out.open("wb") as file:
            np.savez(file, **arrays)
    except (OSError, zipfile.BadZipFile) as error:
        raise UsageError(f"{out} cannot be written ({error})") from error
    told = {
        "queries": len(rows),
        "flagged": int(answer.flagged.sum()),
        "median_snr": float(answer.snr.median()),
        "out": str(out),
    }
    if as_json:
        print_json(told)
    else:
        stdout().print(
            f"{out}: {len(rows)} answers, {told['flagged']} flagged, median signal/noise {told['median_snr']:.3g}",
            markup=False,
        )


def print_report(folder: Path, *, as_json: bool) -> None:
    """The statement, or all its numbers."""
    report = PrivateKV.load(folder).report()
    if as_json:
        print_json(report.to_json())
    else:
        stdout().print(report.text(), markup=False)


def audit_memory(folder: Path, *, releases: int, as_json: bool) -> None:
    """Recompute the numbers, audit a small twin's noise, and exit with 1 if either is wrong."""
    memory = PrivateKV.load(folder)
    wrong = list(check_numbers(memory))
    result = audit_twin(memory.facts, releases=releases)
    if result.is_refuted:
        wrong.append(f"{releases} + {releases} releases prove μ ≥ {result.measured_mu:.4g}, above the claimed one")
    told = {"claimed_mu": result.claimed_mu, "measured_mu_at_least": result.measured_mu, "wrong": wrong}
    if as_json:
        print_json(told)
    else:
        stdout().print(
            f"claimed μ = {result.claimed_mu:.4g}; {releases} + {releases} releases of a small twin prove "
            f"μ ≥ {max(result.measured_mu, 0.0):.4g} at 99.9 % confidence",
            markup=False,
        )
        stdout().print("\n".join(f"WRONG: {line}" for line in wrong) or "nothing wrong was found", markup=False)
    if wrong:
        raise typer.Exit(REFUTED)
