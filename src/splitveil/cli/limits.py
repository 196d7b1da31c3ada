"""Bounds beside measured numbers: found before the attacks, shown after them with their kind and assumptions.

<folder>/bounds-<client, images and releases, hashed>.json      found once, however often an attack goes on
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from splitveil import __version__
from splitveil.attacks import oracle_of
from splitveil.bounds import Bound, bounds_of, missing
from splitveil.check import UsageError
from splitveil.cli.display import err, out
from splitveil.data import ImageSet
from splitveil.evaluation import Result, Suite
from splitveil.evaluation.fingerprints import client_fingerprint
from splitveil.evaluation.roles import roles_of
from splitveil.split import Client
from splitveil.writing import write_text

REVISION = 3  # raised whenever a bound is found in another way


def limits_of(
    client: Client, data: ImageSet, suite: Suite, counts: Sequence[int] = (), *, folder: Path, label: str, quiet: bool
) -> tuple[Bound, ...]:
    """The client's bounds for these numbers of releases; for one and the most that the suite averages by default."""
    releases = sorted(counts or {1, max(trial.threat.releases for trial in suite.trials)})
    facts = (__version__, REVISION, client_fingerprint(oracle_of(client), roles_of(data)), data.sha256, releases)
    place = folder / f"bounds-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}.json"
    if (kept := _read(place)) is not None:
        return kept
    if not quiet and client.mechanism.is_random:
        err().print(f"{label}: bounds", markup=False)
    found = bounds_of(client, data, releases=releases)
    write_text(place, json.dumps([asdict(bound) for bound in found], indent=2, ensure_ascii=False) + "\n")
    return found


def _read(place: Path) -> tuple[Bound, ...] | None:
    """Bounds that were kept; None where there are none, or only damaged ones."""
    try:
        return tuple(Bound.from_words(words) for words in json.loads(place.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, UsageError):
        return None


def show_limits(result: Result, client: Client, data: ImageSet, notes: Sequence[str] = ()) -> None:
    """Bounds with how each is known, under each group what it assumes; then what is not known, and `notes`."""
    console = out()
    groups: dict[tuple[str, ...], list[Bound]] = {}
    for bound in result.bounds:
        groups.setdefault(bound.holds_if, []).append(bound)
    if groups:
        console.print("bounds, whatever the attack:")
    for holds_if, bounds in groups.items():
        for bound in bounds:
            count = "1 release" if bound.releases == 1 else f"{bound.releases} releases"
            console.print(f"  {bound.statement()}   {bound.kind}, {count}: {bound.name}", markup=False, soft_wrap=True)
        console.print(f"      if {'; '.join(holds_if)}", markup=False, soft_wrap=True, style="dim")
    bare = not any(bound.name.startswith("van Trees") for bound in result.bounds)
    lines = [f"no bound: {reason}" for reason in missing(client, data if bare else None)]
    for line in (*lines, *notes):
        console.print(line, markup=False, soft_wrap=True)
