"""Bounds beside measured numbers: computed before the attacks, shown after them with their kind and assumptions."""

from rich.console import Console

from splitveil.bounds import Bound, bounds_of, missing
from splitveil.cli.display import err, out
from splitveil.data import ImageSet
from splitveil.evaluation import Result, Suite
from splitveil.split import Client


def limits_of(client: Client, data: ImageSet, suite: Suite, *, label: str, quiet: bool) -> tuple[Bound, ...]:
    """The client's bounds for one release, and for as many as the suite's attacks average at most."""
    if not quiet and client.mechanism.is_random:
        err().print(f"{label}: bounds", markup=False)
    most = max(trial.threat.releases for trial in suite.trials)
    return bounds_of(client, data, releases=sorted({1, most}))


def show_limits(result: Result, client: Client) -> None:
    """What no attack can beat, each with how it is known and what it assumes; then what is not known, and why."""
    console = out()
    if result.bounds:
        console.print("what no attack can beat:")
    for bound in result.bounds:
        _show(bound, console)
    for reason in missing(client):
        console.print(f"no bound: {reason}", markup=False, soft_wrap=True)


def _show(bound: Bound, console: Console) -> None:
    count = "1 release" if bound.releases == 1 else f"{bound.releases} releases"
    console.print(f"  {bound.statement()}   {bound.kind}, {count}: {bound.name}", markup=False, soft_wrap=True)
    console.print(f"      holds if {'; '.join(bound.holds_if)}", markup=False, soft_wrap=True, style="dim")
