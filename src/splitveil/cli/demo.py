"""`splitveil demo`: an undefended and a protected client, side by side, on the embedded images."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

from rich.table import Table

from splitveil.check import UsageError
from splitveil.cli.config import Config
from splitveil.cli.display import err, print_json
from splitveil.cli.display import out as stdout
from splitveil.cli.runs import new_directory, write_start
from splitveil.cli.train import carry_out, prepare
from splitveil.data import Augment, fashion
from splitveil.training import Recipe, find_device

MARK = ".splitveil-demo"  # only a directory that carries it is ever cleared
BUDGET = {False: 75.0, True: 25.0}  # seconds of training a client, at most; by --quick
NOISE_STD = 0.25


def demo(*, quick: bool, out: Path, seed: int, device: str, as_json: bool, quiet: bool) -> None:
    """The command."""
    find_device(device)
    _clear(out)
    data = fashion()
    quiet_bar = quiet or as_json
    if not quiet_bar:
        err().print(f"SplitVeil demo: two clients on {data.name} ({len(data.train):,} private training images)")
    results: dict[str, Any] = {}
    for name, mechanism in _clients().items():
        prepared = prepare(_config(mechanism, quick=quick, seed=seed), data)
        directory = new_directory(out / name)
        write_start(directory, prepared.config)
        results[name] = carry_out(prepared, directory, label=name, device=device, quiet=quiet_bar)
    (out / MARK).touch()
    if as_json:
        print_json(results)
    elif not quiet:
        _show(results, out)


def _clients() -> dict[str, list[dict[str, Any]]]:
    return {"undefended": [], "protected": [{"name": "gaussian", "std": NOISE_STD}]}


def _config(mechanism: list[dict[str, Any]], *, quick: bool, seed: int) -> Config:
    recipe = Recipe(
        epochs=2 if quick else 6,
        batch_size=128,
        lr=0.05,
        augment=Augment(crop=2, flip=True),
        seed=seed,
        time_budget=BUDGET[quick],
    )
    return dataclasses.replace(Config(), mechanism=mechanism, training=recipe)


def _clear(out: Path) -> None:
    if (out / MARK).exists():
        shutil.rmtree(out)
    elif out.exists() and any(out.iterdir()):
        raise UsageError(f"{out} holds something else than an earlier demo; choose another --out")


def _show(results: dict[str, Any], out: Path) -> None:
    table = Table(title="Fashion-MNIST, client = two convolutions + 8-channel bottleneck")
    for column in ("client", "accuracy", "training"):
        table.add_column(column, justify="left" if column == "client" else "right")
    for name, result in results.items():
        table.add_row(name, f"{result['accuracy']['victims']:.1%}", f"{result['seconds']:.0f} s")
    console = stdout()
    console.print(table)
    console.print(f"Next: splitveil evaluate {out / 'protected'}")
    console.print("      splitveil train -s 'mechanism=[{name: gaussian, std: 0.5}]' --out runs/noisier", markup=False)
