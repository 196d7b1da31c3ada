"""Whether what is kept was made as it is asked for: clients and cells are found by names that do not say how."""

import argparse
import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from suite_cells import SEARCHES, Bounds, Cell
from suite_networks import Client

SEARCHED = 1000  # victims of a cell that was made without saying how many


def refuse_others(words: argparse.Namespace, jobs: Iterable[Bounds | Cell]) -> None:
    """End in one line if a client or a cell in `words.out` was made in another way."""
    every = list(jobs)
    for client in dict.fromkeys(job.client for job in every):
        _compare(words.out / f"{client.slug}.json", asked_of_client(client, words), made_client)
    for job in every:
        if isinstance(job, Cell):
            _compare(words.out / f"{job.slug}.json", asked_of_cell(job, words), made_cell)


def asked_of_client(client: Client, words: argparse.Namespace) -> dict[str, Any]:
    """How it would be trained."""
    charges = {
        "surrogate": {words.surrogate: words.surrogate_weight},
        "adversary": {"adversary": words.adversary_weight},
    }
    return {"std": client.std, "epochs": words.epochs, "charge": charges.get(client.kind, {})}


def made_client(found: dict[str, Any]) -> dict[str, Any]:
    """How a kept one was."""
    return {"std": found["noise_std"], "epochs": found["epochs"], "charge": found["charged"]}


def asked_of_cell(cell: Cell, words: argparse.Namespace) -> dict[str, Any]:
    """How it would be attacked."""
    searched = {"searched": words.searched} if cell.each.attack.name in SEARCHES else {}
    return {"victims": words.victims, "attack-steps": words.attack_steps} | searched


def made_cell(found: dict[str, Any]) -> dict[str, Any]:
    """How a kept one was, as its command says."""
    given = found["command"].replace("=", " ").split()
    said = {name: value for name, value in pairwise(given) if name.startswith("--")}
    numbers = {name: int(said[f"--{name}"]) for name in ("victims", "attack-steps", "searched") if f"--{name}" in said}
    return {"victims": None, "attack-steps": None, "searched": SEARCHED} | numbers


def _compare(file: Path, asked: dict[str, Any], made: Any) -> None:
    if not file.exists():
        return
    kept = made(json.loads(file.read_text()))
    other = [name for name, value in asked.items() if kept[name] != value]
    if other:
        was, now = (", ".join(f"{name} {_word(how[name])}" for name in other) for how in (kept, asked))
        raise SystemExit(f"{file} was made with {was}, asked is {now}; ask for the same, or give another --out")


def _word(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name} {weight}" for name, weight in value.items()) or "nothing"
    return "all" if value is None else str(value)
