"""Options that several commands share, each with its one line of help."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from splitveil import __version__

ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", help="YAML file; see `splitveil config show`.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", "-s", metavar="A.B=C", help="One setting; may be repeated.")
]
Out = Annotated[Path | None, typer.Option("--out", help="Directory to write to. Default: the next free runs/NNN.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of everything random (training.seed).")]
Freeze = Annotated[Literal["encoder", "head"] | None, typer.Option("--freeze", help="Leave this half as it is.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
TimeBudget = Annotated[float | None, typer.Option("--time-budget", help="Seconds; ends cleanly with what it has.")]
PieceBudget = Annotated[float | None, typer.Option("--time-budget", help="Seconds; then exit 3, to be called again.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table.")]
SuiteName = Annotated[str, typer.Option("--suite", help="cheap (about a minute on two cores), standard or full.")]
Releases = Annotated[
    str | None,
    typer.Option("--queries", metavar="T,…", help="Plot leak by releases of one input; --suite full is as standard."),
]
OnlyAttacks = Annotated[list[str] | None, typer.Option("--attack", help="Only this one; may be repeated.")]
Probes = Annotated[
    list[str] | None,
    typer.Option(
        "--probe",
        metavar="NAME=N,…",
        help="Also train probes for: is the class one of these? May be repeated.",
    ),
]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="How many attack seeds.")]
Workers = Annotated[
    int,
    typer.Option("--workers", min=1, max=64, help="Processes that play attacks side by side, this one among them."),
]
Helper = Annotated[int | None, typer.Option("--helper", hidden=True)]  # of this process
Until = Annotated[float | None, typer.Option("--until", hidden=True)]  # this moment
Undefended = Annotated[
    Path | None, typer.Option("--undefended", metavar="RUN", help="An undefended run that was attacked by this suite.")
]
RoleSources = Annotated[
    list[str] | None, typer.Option("--role", metavar="ROLE=SOURCE", help="Take a role from elsewhere; repeatable.")
]
RunDirectory = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory made by `splitveil train`.")]


def _version(asked: bool | None) -> None:
    if asked:
        typer.echo(f"splitveil {__version__}")
        raise typer.Exit


Version = Annotated[bool | None, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")]
