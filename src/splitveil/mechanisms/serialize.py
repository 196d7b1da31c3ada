"""Mechanisms as plain JSON values and back.

    {"name": "chain", "parts": [{"name": "clip", "radius": 4.0}, {"name": "gaussian", "std": 0.5}]}

A saved client is rebuilt from this, and the command line reads the same words.
"""

import inspect
from collections.abc import Mapping

from splitveil.check import UsageError, nearest, one_of
from splitveil.mechanisms.base import Mechanism
from splitveil.mechanisms.chain import Chain
from splitveil.mechanisms.clip import Clip
from splitveil.mechanisms.identity import Identity
from splitveil.mechanisms.noise import Gaussian, Laplace
from splitveil.mechanisms.quantize import Quantize
from splitveil.mechanisms.removal import Dropout, TopK

KINDS: dict[str, type[Mechanism]] = {
    kind.name: kind for kind in (Identity, Clip, Gaussian, Laplace, Dropout, TopK, Quantize, Chain)
}


def to_settings(mechanism: Mechanism) -> dict[str, object]:
    """The mechanism's name and constructor arguments.

    >>> to_settings(Gaussian(std=0.5))
    {'name': 'gaussian', 'std': 0.5}
    """
    return {"name": mechanism.name, **mechanism.settings()}


def from_settings(settings: Mapping[str, object]) -> Mechanism:
    """The mechanism those settings describe.

    Guarantees: `to_settings(from_settings(s))` is `s` with defaults filled in, also through JSON; anything else is a
    `UsageError` that names the key.

    >>> from_settings({"name": "gaussian", "std": 0.5})
    Gaussian(std=0.5)
    """
    options = dict(settings)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise UsageError(f"mechanism needs a name, got {dict(settings)}; choose one of: {', '.join(KINDS)}")
    kind = KINDS[one_of("mechanism", name, tuple(KINDS))]
    if kind is Chain:
        return Chain(_parts(options))
    return kind(**_numbers(kind, options))


def _parts(options: dict[str, object]) -> list[Mechanism]:
    parts = options.pop("parts", None)
    if options or not isinstance(parts, list | tuple):
        raise UsageError(f"chain takes `parts`, a list of mechanisms, got {options or parts}")
    for part in parts:
        if not isinstance(part, Mapping):
            raise UsageError(f"each part of a chain is a mapping with a name, got {part!r}")
    return [from_settings(part) for part in parts]


def _numbers(kind: type[Mechanism], options: dict[str, object]) -> dict[str, int | float]:
    """The options, checked against the constructor: known keys, none missing, every value a number of its type."""
    wanted = inspect.signature(kind).parameters
    checked: dict[str, int | float] = {}
    for key, value in options.items():
        if key not in wanted:
            known = f"it takes: {', '.join(wanted)}" if wanted else "it takes no options"
            raise UsageError(f"{kind.name} has no option {key!r}{nearest(key, tuple(wanted))}; {known}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"{kind.name} {key} must be a number, got {value!r}")
        if wanted[key].annotation is int and not float(value).is_integer():
            raise UsageError(f"{kind.name} {key} must be a whole number, got {value}")
        checked[key] = int(value) if wanted[key].annotation is int else value
    for key, parameter in wanted.items():
        if parameter.default is parameter.empty and key not in checked:
            raise UsageError(f"{kind.name} needs {key}, e.g. {{name: {kind.name}, {key}: …}}")
    return checked
