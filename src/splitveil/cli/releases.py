"""`splitveil attack RUN --queries 1,4,16,64`: the price of noise that is drawn anew.

    z̄ = mean of T releases of one input        noise σ becomes σ/√T        leak(T), with what no attack can exceed

Each number of releases is attacked by least squares and by a decoder, both fitted on averages of as many releases.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from splitveil.check import UsageError
from splitveil.cli.display import err, out
from splitveil.cli.tables import LEGEND, megabytes
from splitveil.evaluation import Result, Suite, releases
from splitveil.split import Client
from splitveil.writing import replacing, write_text

SAYS = 0.99  # a bound on the leak above this says nothing and is not drawn
FACTS = ("client", "data", "n_victims", "seeds", "prior_mse")  # the same of all that stands in one curve
MOST = 1024  # releases of one input: each is kept in memory while victims are attacked


def read_counts(words: str) -> tuple[int, ...]:
    """Numbers of releases, as in "1,4,16,64".

    >>> read_counts("1,4,16")
    (1, 4, 16)
    """
    parts = [part.strip() for part in words.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"--queries wants numbers of releases such as 1,4,16,64, got {words!r}")
    counts = tuple(sorted({int(part) for part in parts}))
    if counts[0] < 1 or counts[-1] > MOST:
        raise UsageError(f"--queries wants numbers from 1 to {MOST}, got {words!r}")
    return counts


def releases_suite(counts: Sequence[int], *, suite: str, attacks: Sequence[str], client: Client) -> Suite:
    """What is played; a client that always sends the same is refused."""
    if attacks:
        raise UsageError("--queries plays least squares and a decoder of its own; leave --attack away")
    if not client.mechanism.is_random:
        raise UsageError("--queries: this client draws no noise, so every release of an input is the same; add noise")
    return releases(counts, is_short=suite == "cheap")


def curve_folder(run: Path, suite: str) -> Path:
    """Where the curve of a suite is kept: suites play other decoders on other numbers of victims."""
    return run / "attacks" / f"queries-{suite}"


def write_curve(result: Result, counts: Sequence[int], folder: Path) -> dict[str, Any]:
    """queries.json and queries.png: leak against the number of releases.

    What an earlier command found for other numbers of the same client, victims and seeds stays in it.
    """
    words = {
        "client": result.client,
        "data": result.data,
        "n_victims": result.n_victims,
        "seeds": list(result.seeds),
        "prior_mse": result.prior_mse,
        "rows": [row for count in counts for row in _rows(result, count)],
        "bounds": [row for count in counts for row in _bounds(result, count)],
    }
    place = folder / "queries.json"
    try:
        words |= _with_earlier(json.loads(place.read_text(encoding="utf-8")), words, counts)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError):
        err().print(f"{place} is of other victims or seeds, or damaged: it is replaced", markup=False, soft_wrap=True)
    write_text(place, json.dumps(words, indent=2, ensure_ascii=False) + "\n")
    with replacing(folder / "queries.png") as fresh:
        _plot(words, fresh)
    return words


def _with_earlier(earlier: dict[str, Any], words: dict[str, Any], counts: Sequence[int]) -> dict[str, Any]:
    """Of both, by releases, and what is new for these `counts`; a `ValueError` where they cannot be compared."""
    if any(earlier[fact] != words[fact] for fact in FACTS):
        raise ValueError
    return {part: _joined(earlier[part], words[part], counts) for part in ("rows", "bounds")}


def _joined(earlier: list[dict[str, Any]], rows: list[dict[str, Any]], counts: Sequence[int]) -> list[dict[str, Any]]:
    others = [row for row in earlier if row["releases"] not in counts]
    return sorted((*others, *rows), key=lambda row: row["releases"])


def show_curve(words: dict[str, Any]) -> None:
    """The same as a table; a row that an earlier version kept may lack its time and memory."""
    title = f"leak against releases of one input, {words['n_victims']} victims of {words['data']}"
    table = Table(title=title, box=SIMPLE)
    for name in ("releases", "attack, flags", "leak [95 %]", "MSE", "s", "MB"):
        table.add_column(name, justify="left" if name.startswith("attack") else "right", overflow="fold")
    for row in words["rows"]:
        leak = row["leak"]
        span = f"{leak['mean']:.3f}\n[{leak['low']:.3f}, {leak['high']:.3f}]"
        told = "\n".join([row["attack"], *(f"  ⚑ {flag.partition(':')[0]}" for flag in row["flags"])])
        spent = f"{row['seconds']:.0f}" if "seconds" in row else "–"
        peak = megabytes(row.get("peak_memory_mb"), is_at_most=row.get("peak_is_at_most", False))
        table.add_row(str(row["releases"]), told, span, f"{row['mse']['mean']:.4f}", spent, peak)
    out().print(table)
    out().print(LEGEND, markup=False, style="dim", soft_wrap=True)


def _rows(result: Result, count: int) -> list[dict[str, Any]]:
    found = [each for each in result.attacks if each.releases == count]
    return [
        {
            "releases": count,
            "attack": each.attack.removesuffix(f"-mean{count}"),
            "leak": vars(each.leak),
            "mse": vars(each.mse),
            "seconds": each.seconds,
            "peak_memory_mb": each.peak_memory_mb,
            "peak_is_at_most": each.peak_is_at_most,
            "flags": [str(flag) for flag in each.flags],
        }
        for each in found
    ]


def _bounds(result: Result, count: int) -> list[dict[str, Any]]:
    """Every bound in full; proved ones on the MSE also as the most that can leak, which is null for others."""
    return [
        asdict(bound) | {"leak_at_most": 1 - bound.safe / result.prior_mse if bound.is_about_attacks else None}
        for bound in result.bounds
        if bound.releases == count
    ]


def _plot(words: dict[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4.2), layout="constrained")
    axis = figure.subplots()
    for name in dict.fromkeys(row["attack"] for row in words["rows"]):
        mine = [row for row in words["rows"] if row["attack"] == name]
        leaks = [row["leak"] for row in mine]
        spread = [[each["mean"] - each["low"] for each in leaks], [each["high"] - each["mean"] for each in leaks]]
        places = [row["releases"] for row in mine]
        axis.errorbar(places, [each["mean"] for each in leaks], yerr=spread, marker="o", capsize=3, label=name)
    drawn = [row for row in words["bounds"] if row["leak_at_most"] is not None and row["leak_at_most"] < SAYS]
    for name in dict.fromkeys(row["name"] for row in drawn):
        mine = [row for row in drawn if row["name"] == name]
        places, most = [row["releases"] for row in mine], [row["leak_at_most"] for row in mine]
        axis.plot(places, most, linestyle="--", color="gray", marker=".", label=f"at most ({name})")
    axis.set_xscale("log", base=2)
    counts = sorted({row["releases"] for row in words["rows"]})
    axis.set_xticks(counts, [str(count) for count in counts])
    axis.set_xlabel("releases of one input")
    axis.set_ylabel("leak (0 nothing, 1 exact)")
    axis.set_title(f"{words['data']}, {words['n_victims']} victims", fontsize=10)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    figure.savefig(path, dpi=130)
