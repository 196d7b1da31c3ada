"""The command line: words → calls. Nothing heavy is imported before a command runs, so `--help` is quick.

Exit codes: 0 done · 1 a gate failed · 2 wrong use · 3 a run that failed or was interrupted.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from splitveil.check import RunError, SplitVeilError
from splitveil.cli.catalog import Catalog
from splitveil.cli.memory import app as memory_app
from splitveil.cli.misuse import misused
from splitveil.cli.options import (
    ConfigFile,
    Device,
    Freeze,
    Helper,
    Json,
    OnlyAttacks,
    Out,
    Overrides,
    PieceBudget,
    Probes,
    Quiet,
    Releases,
    RoleSources,
    RunDirectory,
    Seed,
    Seeds,
    SuiteName,
    TimeBudget,
    Undefended,
    Until,
    Version,
    Workers,
)
from splitveil.cli.shortage import told

MISUSE: Any = typer.BadParameter.__base__  # click's UsageError, which some versions of typer bring themselves
INTERRUPTED = 130  # what typer makes of Ctrl-C

app = typer.Typer(
    name="splitveil",
    help="Private split inference: train clients whose features give less away, attack them, and know what leaks.",
    epilog="Start with `splitveil demo`. Each command's --help has examples.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="markdown",
)
config_app = typer.Typer(help="Print the config or its schema.", no_args_is_help=True)
data_app = typer.Typer(help="Look at image sets.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(memory_app, name="memory")
app.add_typer(data_app, name="data")


@app.callback()
def _root(version: Version = None) -> None: ...


@app.command()
def demo(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer epochs: under 90 s on two cores.")] = False,
    out: Annotated[Path, typer.Option("--out", help="Where the two runs are written.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option("--seed")] = 0,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train an undefended and a protected client on the embedded images, attack both, and compare them.

    Under 4 minutes on two cores. Example: `splitveil demo --quick`
    """
    from splitveil.cli import demo as command

    command.demo(quick=quick, out=out, seed=seed, device=device, as_json=json, quiet=quiet)


@app.command()
def train(
    config: ConfigFile = None,
    set_: Overrides = None,
    out: Out = None,
    resume: Annotated[Path | None, typer.Option("--resume", metavar="RUN", help="Go on with this run.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="A listed network, or package.module:factory.")] = None,
    init: Annotated[Path | None, typer.Option("--init", help="Start from these weights (.safetensors).")] = None,
    freeze: Freeze = None,
    seed: Seed = None,
    device: Device = "auto",
    time_budget: TimeBudget = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a split model and write a run directory.

    Examples:

    `splitveil train -s 'mechanism=[{name: gaussian, std: 0.1}]' --out runs/noisy`

    `splitveil train -c cifar.yaml -s training.epochs=40 --seed 1`

    `splitveil train --model mypackage.nets:make --init mine.safetensors -s model.cut=layer2 --freeze head`

    `splitveil train --resume runs/noisy`
    """
    from splitveil.cli import train as command

    named: dict[str, Any] = {"model.name": model, "model.init": init, "training.freeze": freeze}
    named |= {"training.seed": seed, "training.time_budget": time_budget}
    overrides = [*(set_ or []), *(f"{key}={value}" for key, value in named.items() if value is not None)]
    command.train(config=config, overrides=overrides, out=out, resume=resume, device=device, as_json=json, quiet=quiet)


@app.command()
def attack(
    run: RunDirectory,
    suite: SuiteName = "standard",
    attack: OnlyAttacks = None,
    queries: Releases = None,
    probe: Probes = None,
    seeds: Seeds = 1,
    workers: Workers = 1,
    helper: Helper = None,
    until: Until = None,
    time_budget: PieceBudget = None,
    undefended: Undefended = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Attack the client of a finished run. Finished attacks are kept: the same command goes on after Ctrl-C.

    Examples:

    `splitveil attack runs/noisy --suite cheap`

    `splitveil attack runs/noisy --attack decoder-unet --seeds 2 --device cuda`

    `splitveil attack runs/noisy --suite full --workers 4 --time-budget 540`

    `splitveil attack runs/noisy --queries 1,4,16,64` · `splitveil attack runs/noisy --probe animal=2,3,4,5,6,7`

    `splitveil attack runs/noisy --undefended runs/bare`, after `splitveil attack runs/bare`
    """
    from splitveil.cli import attack as command

    command.attack(
        run,
        suite=suite,
        attacks=attack or (),
        queries=queries,
        probes=probe or (),
        n_seeds=seeds,
        n_workers=workers,
        helper=helper,
        until=until,
        time_budget=time_budget,
        undefended=undefended,
        device=device,
        as_json=json,
        quiet=quiet,
    )


@app.command()
def evaluate(
    run: RunDirectory,
    suite: SuiteName = "cheap",
    seeds: Seeds = 1,
    min_accuracy: Annotated[float | None, typer.Option("--min-accuracy", help="Gate: exit 1 below this.")] = None,
    max_leak: Annotated[float | None, typer.Option("--max-leak", help="Gate: exit 1 above it, or if flagged.")] = None,
    undefended: Undefended = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure a finished run on the victims: accuracy, and what a suite of attacks reconstructs.

    Example: `splitveil evaluate runs/noisy --suite standard --min-accuracy 0.85 --max-leak 0.6`
    """
    from splitveil.cli import attack as command

    command.evaluate(
        run,
        suite=suite,
        n_seeds=seeds,
        min_accuracy=min_accuracy,
        max_leak=max_leak,
        undefended=undefended,
        device=device,
        as_json=json,
        quiet=quiet,
    )


@app.command()
def diagnose(run: RunDirectory, json: Json = False) -> None:
    """Plot what the penalties of a run did over time, and say what looks wrong.

    Example: `splitveil diagnose runs/slots`
    """
    from splitveil.cli import diagnose as command

    command.diagnose(run, as_json=json)


@app.command(name="list")
def list_(what: Catalog, json: Json = False) -> None:
    """List what a config can name, one line each.

    Example: `splitveil list mechanisms`
    """
    from splitveil.cli import show

    show.catalog_table(what.value, as_json=json)


@config_app.command(name="show")
def config_show(config: ConfigFile = None, set_: Overrides = None) -> None:
    """Print the complete config that these words give, as YAML to start from.

    Example: `splitveil config show -s training.epochs=5 > mine.yaml`
    """
    from splitveil.cli.config import read_config, to_yaml

    typer.echo(to_yaml(read_config(config, set_ or [])), nl=False)


@config_app.command(name="schema")
def config_schema() -> None:
    """Print the JSON schema of the config, for editors and checks."""
    import json

    from splitveil.cli.config import schema

    typer.echo(json.dumps(schema(), indent=2))


@app.command()
def doctor(json: Json = False) -> None:
    """Say what is installed, what is missing and what it would be for."""
    from splitveil.cli import show

    show.doctor(as_json=json)


@data_app.command(name="check")
def data_check(
    source: Annotated[str, typer.Argument(help="A name, a file or a folder.")],
    size: Annotated[int | None, typer.Option("--size", help="Scale and cut image files to SIZE×SIZE.")] = None,
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Leave out images that cannot be read.")] = False,
    people: Annotated[bool, typer.Option("--people", help="Classes are identities: roles share nobody.")] = False,
    role: RoleSources = None,
    json: Json = False,
) -> None:
    """Read an image set and print its roles, classes, hash, and what should be known about it.

    Examples: `splitveil data check fashion` · `splitveil data check faces/ --people --size 64 --role auxiliary=lfw/`
    """
    from splitveil.cli import show

    show.data_check(source, size=size, skip_broken=skip_broken, people=people, roles=role or (), as_json=json)


def run(words: Sequence[str] | None = None) -> None:
    """Entry point: every mistake of the caller becomes one line and an exit code."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads halve the speed of a machine that is shared
    try:
        code = app(args=None if words is None else list(words), prog_name="splitveil", standalone_mode=False)
    except SplitVeilError as error:
        _leave(error, 3 if isinstance(error, RunError) else 2)
    except MISUSE as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # it has printed its help already
            sys.exit(2)
        _leave(misused(error, app, sys.argv[1:] if words is None else words), 2)
    except (OSError, MemoryError, RuntimeError) as error:  # a disk, a file or a size that no check of ours foresaw
        _leave(told(error), 3)
    if code == INTERRUPTED:
        _leave("interrupted", 3)
    sys.exit(code or 0)


def _leave(reason: Any, code: int) -> NoReturn:
    print("error:", *str(reason).splitlines(), file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    run()
