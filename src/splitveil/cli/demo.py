"""`splitveil demo`: an undefended and a protected client, side by side, on the embedded images."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from splitveil.check import UsageError
from splitveil.cli.attack import run_attacks
from splitveil.cli.config import Config
from splitveil.cli.display import err, print_json
from splitveil.cli.display import out as stdout
from splitveil.cli.runs import new_directory, refuse_ranks, write_start
from splitveil.cli.train import carry_out, prepare
from splitveil.data import Augment, fashion
from splitveil.evaluation import Result, suite_named
from splitveil.training import Recipe, find_device

MARK = ".splitveil-demo"  # only a directory that carries it is ever cleared, and only of what a demo writes
SUITE = "cheap"
BUDGET = {False: 45.0, True: 18.0}  # seconds of training a client, at most; by --quick
QUICK_ATTACKS = ("ridge", "ridge-mean16")  # closed forms: seconds each
CLIENTS: dict[str, dict[str, list[dict[str, Any]]]] = {
    "undefended": {"mechanism": [], "regularizers": []},
    "protected": {
        "mechanism": [{"name": "gaussian", "std": 0.1}],
        "regularizers": [{"name": "plain", "weight": 1.0, "warmup_epochs": 1}],
    },
}


def demo(*, quick: bool, out: Path, seed: int, device: str, as_json: bool, quiet: bool) -> None:
    """The command."""
    place = find_device(device)
    refuse_ranks("demo")
    configs = {name: _config(words, quick=quick, seed=seed) for name, words in CLIENTS.items()}
    suite = suite_named(SUITE).only(QUICK_ATTACKS) if quick else suite_named(SUITE)
    _clear(out)
    data = fashion()
    silent = quiet or as_json
    if not silent:
        err().print(f"SplitVeil demo: two clients on {data.name} ({len(data.train):,} private training images)")
    shown: list[Shown] = []
    for name, config in configs.items():
        prepared = prepare(config, device=device, data=data)
        directory = new_directory(out / name)
        (out / MARK).touch()
        write_start(directory, prepared.config)
        trained = carry_out(prepared, directory, label=name, device=device, quiet=silent)
        attacked = run_attacks(
            prepared.split.to(place).client,
            data,
            directory / "attacks" / SUITE,
            suite=suite,
            label=name,
            quiet=silent,
            undefended=shown[0].attacked if shown else None,
            interrupted="interrupted; the same command starts over",
        )
        shown.append(Shown(name, trained, attacked))
    if as_json:
        print_json({each.name: each.facts() for each in shown})
    elif not quiet:
        _show(shown, out)


@dataclass(frozen=True)
class Shown:
    """One client of the demo."""

    name: str
    trained: dict[str, Any]
    attacked: Result

    def facts(self) -> dict[str, Any]:
        """Its row of the table."""
        best = self.attacked.best
        return {
            "accuracy": self.trained["accuracy"]["victims"],
            "leak": best.leak.mean,
            "mse": best.mse.mean,
            "ssim": None if best.ssim is None else best.ssim.mean,
            "worst_attack": self.attacked.headline,
            "epochs": self.trained["epochs"],
            "stopped": self.trained["stopped"],
            "unreliable": list(self.attacked.reasons),
        }


def _config(words: dict[str, list[dict[str, Any]]], *, quick: bool, seed: int) -> Config:
    recipe = Recipe(
        epochs=2 if quick else 6,
        batch_size=128,
        lr=0.05,
        augment=Augment(crop=2, flip=True),
        seed=seed,
        time_budget=BUDGET[quick],
    )
    base = Config()
    return Config(base.data, base.model, words["mechanism"], words["regularizers"], recipe)


def _clear(out: Path) -> None:
    """Remove an earlier demo; what it did not write is nobody's to remove."""
    if not (out / MARK).exists():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(f"{out} holds something else than an earlier demo; choose another --out")
        return
    attacked = [path for name in CLIENTS for path in (out / name / "attacks").glob("*") if path.name != SUITE]
    for added in (*(path for path in out.iterdir() if path.name not in (MARK, *CLIENTS)), *attacked):
        raise UsageError(f"{added} was added to an earlier demo; move it away, or choose another --out")
    shutil.rmtree(out)


def _show(shown: list[Shown], out: Path) -> None:
    table = Table(title=f"What leaks: worst case over the suite “{shown[0].attacked.suite}”")
    for column in ("client", "accuracy", "leak", "MSE", "SSIM", "worst attack"):
        table.add_column(column, justify="left" if column in ("client", "worst attack") else "right")
    for each in shown:
        facts = each.facts()
        table.add_row(
            each.name,
            f"{facts['accuracy']:.1%}",
            f"{facts['leak']:.2f}",
            f"{facts['mse']:.4f}",
            f"{facts['ssim']:.2f}",
            facts["worst_attack"],
        )
    console = stdout()
    console.print(table)
    console.print("leak: 0 = no better than the average picture, 1 = the exact picture")
    for each in shown:
        if each.trained["stopped"]:
            console.print(f"{each.name}: {each.trained['stopped']} after {each.trained['epochs']} epochs", markup=False)
    for each in shown:
        for reason in each.attacked.reasons:
            console.print(f"{each.name}: not to be believed yet: {reason}", markup=False)
    console.print(f"Look at what was reconstructed: {out}/*/attacks/{SUITE}/**/*.png", markup=False)
    again = f"Next: splitveil attack {out / shown[-1].name} --suite standard"
    console.print(again, markup=False, soft_wrap=True)
    console.print("      splitveil train --help", soft_wrap=True)
