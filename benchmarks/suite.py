"""Every attack of `full` against three clients: one JSON cell per client, attack and seed, and one table.

    python benchmarks/suite.py DATA --device cuda --workers 4 --time-budget 540 --work kept/suite
    python benchmarks/suite.py fashion --device cpu --workers 1 --epochs 1 --attack-steps 4 --victims 50 --out smoke

DATA is the folder that holds CIFAR-10 (or any name or file that `splitveil data check` reads). The clients share one
network, one noise and one recipe: `noise` is charged for nothing, `surrogate` by --surrogate, `adversary` −w·log MSE
of a live decoder. They are trained once and kept beside the cells, with the judges; fits in flight, priors and the
servers' halves are kept in --work (a half that is not there is trained anew on its client): the same command goes on
where the time budget ended it. Cells that exist are skipped, the most informative come first, and what is left over is
printed as "not measured". Attacks that take long for each victim are scored on the first --searched of them, and "of
1st" is every attack's error on these. Judged are the flags that one attack, the client's bounds or two rows can show;
no undefended client is among the three, and one seed shows no instability.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from ladder_cells import head_weights, pack, unpack, weights
from suite_cells import PRIORS, Bounds, Cell, attack_one, bound_one, source_of, trials
from suite_kept import SEARCHED, refuse_others
from suite_networks import (
    KINDS,
    Client,
    Head,
    Judge,
    Prior,
    is_half,
    keep_networks,
    learn_prior,
    prepare_judge,
    ready,
    take_networks,
    train_head,
    train_one,
)
from workers import claims, do, launch, run_workers, write

from splitveil.attacks import DiffusionAttack
from splitveil.cli.runs import environment
from splitveil.data import read
from splitveil.evaluation import Inquiry, Trial, flags
from splitveil.evaluation.rivals import rivals, uses_client
from splitveil.metrics import Interval

Job = Client | Head | Judge | Prior | Bounds | Cell


def clients(words: argparse.Namespace) -> list[Client]:
    """All clients, the first seed of every kind first."""
    return [Client(kind, words.std, seed) for seed in words.seeds for kind in words.clients]


def jobs(words: argparse.Namespace) -> list[Bounds | Cell]:
    """What makes up the table, most informative first: of each trial all clients, of each seed all trials."""
    found: list[Bounds | Cell] = []
    for seed in words.seeds:
        mine = [client for client in clients(words) if client.seed == seed]
        found += [Bounds(client) for client in mine]
        found += [Cell(client, each) for each in trials(words) for client in mine]
    return found


def open_jobs(words: argparse.Namespace, work: Path) -> list[Job]:
    """What has no result and no client that failed, after the clients, priors and judges it needs."""
    left = [job for job in jobs(words) if not (words.out / f"{job.slug}.json").exists()]
    left = [job for job in left if not (work / f"{job.client.slug}.failed").exists()]
    needed = {job.client for job in left}
    missing = [client for client in clients(words) if client in needed and not weights(client, work).exists()]  # type: ignore[arg-type]
    judges = [Judge(insider) for insider in (True, False) if left and not _is_trained(Judge(insider), work)]
    priors = {prior_of(job) for job in left if isinstance(job, Cell)} - {None}
    wanted = sorted((each for each in priors if each and not ready(each, work).exists()), key=lambda each: each.slug)
    heads = {Head(job.client): None for job in left if isinstance(job, Cell) and job.each.threat.head_known}
    lacking = [head for head in heads if head.client not in missing and not _is_there(head, work)]
    return [*missing, *reversed(wanted), *judges, *lacking, *left]


def _is_there(head: Head, work: Path) -> bool:
    return head_weights(head.client, work).exists() or (work / f"{head.slug}.failed").exists()  # type: ignore[arg-type]


def _is_trained(judge: Judge, work: Path) -> bool:
    found = any(not is_half(file) for file in work.glob(f"{judge.slug}-*.safetensors"))
    return found or (work / f"{judge.slug}.failed").exists()


def worker(words: argparse.Namespace) -> None:
    """Claim and do what is not done, in order, until nothing is left or the time is up."""
    torch.backends.cudnn.benchmark = True
    work = Path(words.work)
    data = unpack(work / "data.npz")
    data = data if words.device == "cpu" else data.to(words.device)
    facts = {"data": data.name, "data_sha256": data.sha256, "command": command_line()}

    def measure(job: Job) -> dict[str, Any]:
        match job:
            case Client():
                return train_one(data, job, words, work) | facts
            case Head():
                return train_head(data, job, words, work) | facts
            case Judge():
                return prepare_judge(data, job, words, work) | facts
            case Prior():
                return learn_prior(data, job, words, work) | facts
            case Bounds():
                return bound_one(data, job, words, work) | facts
            case Cell():
                return attack_one(data, job, words, work) | facts

    def is_ready(job: Job) -> bool:
        if isinstance(job, Client | Head | Judge | Prior):
            return True
        judged = all(_is_trained(Judge(insider), work) for insider in (True, False))
        is_trained = weights(job.client, work).exists()  # type: ignore[arg-type]
        if isinstance(job, Bounds):
            return is_trained
        is_bounded = (words.out / f"{Bounds(job.client).slug}.json").exists()
        return is_trained and is_bounded and judged and is_prepared(job, words, work)

    do(claims(lambda: open_jobs(words, work), is_ready, words), measure, words)


def is_prepared(cell: Cell, words: argparse.Namespace, work: Path) -> bool:
    """Whether what this cell shares with others is there, or its own to make."""
    if (source := source_of(cell.each)) is not None:
        return (words.out / f"{Cell(cell.client, source).slug}.json").exists()
    if cell.each.threat.head_known and not _is_there(Head(cell.client), work):
        return False
    prior = prior_of(cell)
    return prior is None or ready(prior, work).exists() or (work / f"{prior.slug}.failed").exists()


def prior_of(cell: Cell) -> Prior | None:
    """What it shares with the same attack on other clients."""
    attack = cell.each.attack
    if isinstance(attack, DiffusionAttack):
        attack = replace(attack, start="noise")  # one denoiser serves both
    return Prior(attack, cell.client.seed) if attack.name in PRIORS else None  # type: ignore[arg-type]


def command_line() -> str:
    """This call, without places."""
    hidden = ("--work", "--deadline", "--worker", "--out")
    given = sys.argv[2:]
    shown = [word for i, word in enumerate(given) if word not in hidden and (i == 0 or given[i - 1] not in hidden)]
    return " ".join(["python benchmarks/suite.py DATA", *shown])


def table(words: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per client and job, pooled over seeds; strongest attack of each client first, then what is missing."""
    rows = []
    for kind in words.clients:
        same: dict[str, list[Cell]] = {}
        for job in jobs(words):
            if job.client.kind == kind and isinstance(job, Cell):
                same.setdefault(job.each.name, []).append(job)
        mine = [row(words, kind, name, found) for name, found in same.items()]
        flag_black_boxes(mine, {name: found[0].each for name, found in same.items()})
        rows += sorted(mine, key=lambda each: each.get("mse", 9.0 if each["seeds"] else 99.0))
    return rows


def flag_black_boxes(rows: Sequence[dict[str, Any]], played: Mapping[str, Trial | Inquiry]) -> None:
    """As an evaluation does, among the rows of one client; intervals tell how sure fewer victims are."""
    measured = {each["attack"]: each for each in rows if "mse" in each}
    trials = {name: trial for name, trial in played.items() if name in measured and isinstance(trial, Trial)}
    spans = {name: Interval(measured[name]["mse"], *measured[name]["mse_interval"]) for name in trials}
    for name, trial in trials.items():
        found = [black.name for black in rivals(trial, trials.values())]
        flag = flags.black_beats_white(spans[name], {black: spans[black] for black in found})
        measured[name]["flags"] += [str(flag.name)] if flag else []
        measured[name]["not_checked"] = [str(flags.FlagName.BLACK_BEATS_WHITE)] * (uses_client(trial) and not found)


def row(words: argparse.Namespace, kind: str, name: str, same: Sequence[Cell]) -> dict[str, Any]:
    """The cells of one attack on one client."""
    files = [words.out / f"{job.slug}.json" for job in same]
    found = [json.loads(file.read_text()) for file in files if file.exists()]
    facts: dict[str, Any] = {"client": kind, "attack": name, "seeds": [each["seed"] for each in found]}
    attacks = [each["attack"] for each in found if "attack" in each]
    for each in (inference for cell in found for inference in cell["inferences"]):
        facts[each["name"]] = {"score": each["score"]["mean"], "chance": each["chance"]}
        facts[each["name"]] |= {"ceiling": each["ceiling"]["mean"]} if each["ceiling"] else {}
    if not attacks:
        return facts
    for metric in ("mse", "ssim", "lpips", "leak"):
        known = [attack[metric] for attack in attacks if attack[metric] is not None]
        facts[metric] = fmean(span["mean"] for span in known) if known else None
    spans = [attack["mse"] for attack in attacks]
    facts["mse_interval"] = [fmean(span["low"] for span in spans), fmean(span["high"] for span in spans)]
    facts["n_victims"] = min(each["n_victims"] for each in found)
    shared = [each["mse_of_searched"] for each in found if "mse_of_searched" in each]
    facts["mse_of_searched"] = fmean(shared) if shared else None
    facts["seconds"] = fmean(attack["seconds"] for attack in attacks)
    facts["peak_memory_mb"] = max((attack["peak_memory_mb"] or 0.0) for attack in attacks)
    facts["flags"] = sorted({flag["name"] for attack in attacks for flag in attack["flags"]})
    return facts


def about(words: argparse.Namespace) -> list[dict[str, Any]]:
    """Accuracy and bounds of every client that was measured."""
    told = []
    for client in clients(words):
        files = {"client": words.out / f"{client.slug}.json", "bounds": words.out / f"{Bounds(client).slug}.json"}
        found = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
        accuracy = found["client"]["accuracy"]["victims"] if "client" in found else None
        bounds = found["bounds"]["bounds"] if "bounds" in found else []
        told.append({"client": client.kind, "seed": client.seed, "accuracy": accuracy, "bounds": bounds})
    return told


def show(rows: Sequence[dict[str, Any]], told: Sequence[dict[str, Any]]) -> None:
    """The table."""
    for each in told:
        share = "not measured" if each["accuracy"] is None else f"{each['accuracy']:.1%}"
        print(f"{each['client']} (seed {each['seed']}): accuracy {share}")
        for bound in each["bounds"]:
            print(
                f"    {bound['name']}: {bound['value']:.4g} {bound['unit']} ({bound['kind']}, T = {bound['releases']})"
            )
    head = f"{'client':>9}  {'attack':<64} {'MSE':>8} {'[95 %]':>18} {'SSIM':>6} {'LPIPS':>6} {'leak':>6} {'named':>6}"
    print(f"{head} {'of 1st':>8} {'victims':>7} {'s':>5} {'MB':>6}  flags")
    for each in rows:
        print(_line(each))


def _line(each: dict[str, Any]) -> str:
    start = f"{each['client']:>9}  {each['attack']:<64}"
    if not each["seeds"]:
        return f"{start} not measured"
    if "mse" not in each:
        probes = (name for name, value in each.items() if isinstance(value, dict))
        return f"{start} " + ", ".join(
            f"right {each[name]['score']:.1%}, chance {each[name]['chance']:.1%}" for name in probes
        )
    low, high = each["mse_interval"]
    ssim, lpips = (f"{each[name]:.3f}" if each[name] is not None else "–" for name in ("ssim", "lpips"))
    named = each.get("classifier-on-reconstruction")
    share = f"{named['score']:.1%}" if named else "–"
    numbers = (
        f"{each['mse']:>8.5f} {f'[{low:.5f}, {high:.5f}]':>18} {ssim:>6} {lpips:>6} {each['leak']:>6.3f} {share:>6}"
    )
    shared = "–" if each["mse_of_searched"] is None else f"{each['mse_of_searched']:.5f}"
    numbers += f" {shared:>8} {each['n_victims']:>7} {each['seconds']:>5.0f} {each['peak_memory_mb']:>6.0f}"
    return f"{start} {numbers}  {', '.join(each['flags'])}"


def run(words: argparse.Namespace) -> None:
    """Read the images once, start the workers, print the table."""
    refuse_others(words, jobs(words))
    words.out.mkdir(parents=True, exist_ok=True)
    work = Path(words.work)
    work.mkdir(parents=True, exist_ok=True)
    if words.workers:
        if not (work / "data.npz").exists():
            pack(read(words.data), work / "data.npz")
        take_networks(words, work)
        print(f"data read, {words.deadline - time.time():.0f} s left", flush=True)
        run_workers(__file__, words)
        keep_networks(words, work)
    rows, told = table(words), about(words)
    facts = {"command": command_line(), "clients": told, "rows": rows, "environment": environment()}
    write(words.out / "table.json", facts)
    show(rows, told)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--out", type=Path, default=Path("results/suite"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=4, help="processes side by side; 0 prints the table alone")
    parser.add_argument("--time-budget", type=float, default=540.0, help="seconds for everything")
    parser.add_argument("--std", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--clients", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--surrogate", default="slots", help="as `splitveil list regularizers` names it")
    parser.add_argument("--surrogate-weight", type=float, default=0.4)
    parser.add_argument("--adversary-weight", type=float, default=0.3)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--attacks", nargs="+", help="only these, by name; all of `full` by default")
    parser.add_argument("--attack-steps", type=int, help="at most so many steps of any attack, for a smoke test")
    parser.add_argument("--victims", type=int, help="at most so many victims; all by default")
    parser.add_argument("--searched", type=int, default=SEARCHED, help="the same for attacks that take long for each")
    launch(parser, run, worker, name="suite")


if __name__ == "__main__":
    main()
