"""Bounds beside measured numbers: computed before the attacks, shown after them with their kind and assumptions."""

from collections.abc import Sequence

from splitveil.bounds import Bound, bounds_of, missing
from splitveil.cli.display import err, out
from splitveil.data import ImageSet
from splitveil.evaluation import Result, Suite
from splitveil.split import Client


def limits_of(
    client: Client, data: ImageSet, suite: Suite, counts: Sequence[int] = (), *, label: str, quiet: bool
) -> tuple[Bound, ...]:
    """The client's bounds for these numbers of releases; for one and the most that the suite averages by default."""
    if not quiet and client.mechanism.is_random:
        err().print(f"{label}: bounds", markup=False)
    most = max(trial.threat.releases for trial in suite.trials)
    return bounds_of(client, data, releases=sorted(counts or {1, most}))


def show_limits(result: Result, client: Client) -> None:
    """Bounds with how each is known, under each group what it assumes; then what is not known, and why."""
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
    for reason in missing(client):
        console.print(f"no bound: {reason}", markup=False, soft_wrap=True)
