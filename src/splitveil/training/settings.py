"""What the outcome of a training depends on, in words that a checkpoint keeps and a resumption compares.

    words = recipe + mechanism + penalties + layers of both halves (+ what the caller knows of how they were built)

How a run is computed is left out (device, processes, compiling, memory layout), and so is what only stops it (time
budget, limits). A word that one side alone has is an option of another version, and is not compared.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from splitveil.check import UsageError
from splitveil.mechanisms import Chain, Identity, Mechanism
from splitveil.split import Split
from splitveil.training.recipe import Recipe
from splitveil.training.step import Term

FREE = ("time_budget", "compile", "channels_last")  # of a recipe: how it is computed and how long, not what
N_NAMED = 3  # differences that a refusal spells out
LONGEST = 60  # characters of a value in a refusal


def outcome_words(
    split: Split, recipe: Recipe, terms: Sequence[Term], more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Everything that decides in which weights a training ends, images apart, as plain JSON values."""
    words = {
        **(more or {}),
        "mechanism": _mechanism(split.client.mechanism),
        "regularizers": [_term(term) for term in terms],
        "training": _recipe(recipe, terms),
        "layers": _layers(split),
    }
    plain: dict[str, Any] = json.loads(json.dumps(words, default=_plain))
    return plain


def refuse_other_settings(now: Mapping[str, Any], kept: Mapping[str, Any], *, epochs: int, run: object) -> None:
    """Raise if a checkpoint whose state is `kept` would go on as another training.

    One that an older version wrote does not say its settings, and is held to nothing but its number of epochs.
    """
    found = differences(now, kept.get("settings", {}))
    if not found and epochs < kept["epoch"]:
        found = [f"training.epochs is {epochs} ({kept['epoch']} are done)"]
    if found:
        more = f" and {len(found) - N_NAMED} more" if len(found) > N_NAMED else ""
        raise UsageError(
            f"{run}: not the settings the run began with: {', '.join(found[:N_NAMED])}{more}; "
            "give the old ones back, or start a new run with another --out"
        )


def differences(now: Mapping[str, Any], was: Mapping[str, Any]) -> list[str]:
    """Each setting that is not what it was; layers only where no setting explains them."""
    found = list(_compared({**now, "layers": None}, {**was, "layers": None}, ""))
    return found or list(_compared(now, was, ""))


def _compared(now: Any, was: Any, path: str) -> Iterator[str]:
    if isinstance(now, Mapping) and isinstance(was, Mapping):
        both = [key for key in now if key in was]  # a number of torch's layers also comes and goes with its version
        if "name" in both and now["name"] != was["name"]:
            both = ["name"]  # the options of another kind are others
        for key in both:
            yield from _compared(now[key], was[key], f"{path}.{key}" if path else key)
    elif isinstance(now, list) and isinstance(was, list) and len(now) == len(was):
        for i, (new, old) in enumerate(zip(now, was, strict=True)):
            yield from _compared(new, old, f"{path}.{i}")
    elif now != was:
        yield f"{path} is {_brief(now)} (was {_brief(was)})"


def _brief(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(each, dict) and "name" in each for each in value):
        value = [each["name"] for each in value]
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _recipe(recipe: Recipe, terms: Sequence[Term]) -> dict[str, Any]:
    """A recipe without what is free, or does nothing beside its other settings."""
    words = dataclasses.asdict(recipe)
    unused = {
        "momentum": recipe.optimizer == "adamw",
        "milestones": recipe.schedule != "multistep",
        "epochs": recipe.schedule == "constant" and not terms,  # a penalty may look at how many there will be
    }
    return {key: value for key, value in words.items() if key not in FREE and not unused.get(key, False)}


def _mechanism(mechanism: Mechanism) -> list[dict[str, Any]]:
    parts = list(mechanism) if isinstance(mechanism, Chain) else [mechanism]
    return [{"name": part.name, **part.settings()} for part in parts if not isinstance(part, Identity)]


def _term(term: Term) -> dict[str, Any]:
    weight = dataclasses.asdict(term.weight)
    return {
        "name": term.name,
        "weight": weight.pop("value"),
        **weight,
        "clip_norm": term.clip_norm,
        "gradient_decay": term.gradient_decay,
        "keep_accuracy": term.accuracy_floor,
        **({"kind": type(term.regularizer).__name__} if term.options is None else term.options),
    }


def _layers(split: Split) -> dict[str, Any]:
    """Every layer that holds no others: its kind and the numbers it was built with, as far as it keeps them."""
    halves = (("encoder", split.client.encoder), ("head", split.server.head))
    found = {
        f"{half}.{name}": {"name": type(layer).__name__, **_numbers(layer)}
        for half, whole in halves
        for name, layer in whole.named_modules()
        if not any(layer.children())
    }
    return {"order": list(found), **found}


def _numbers(layer: nn.Module) -> dict[str, Any]:
    kept = {key: value for key, value in vars(layer).items() if key[0] != "_" and key != "training"}
    return {key: value for key, value in kept.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    return all(map(_is_number, value)) if isinstance(value, tuple) else isinstance(value, int | float)


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else str(value)
