"""Words of a config against the records and constructors they are for: which are known, where each belongs.

A parameter that is a record can be said as a word of its own or through its fields: with `threshold: Tau | None`,
`threshold: {quantile: 0.5}` and `quantile: 0.5` are the same. Nothing here imports torch or pydantic.
"""

import dataclasses
import inspect
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from splitveil.check import UsageError, nearest

Path = tuple[str, ...]


def check_keys(words: Any, kind: Any, where: str) -> None:
    """Refuse words that a record, or a record in it, does not have."""
    record = record_in(kind)
    if record is None or not isinstance(words, Mapping):
        return
    known = {f.name: f.type for f in dataclasses.fields(record)}
    for key, value in words.items():
        path = f"{where}.{key}" if where else str(key)
        if key not in known:
            raise UsageError(f"{path}: unknown key{nearest(str(key), list(known))}; known: {', '.join(known)}")
        check_keys(value, known[key], path)


def record_in(kind: Any) -> Any:
    """The dataclass in an annotation, None if there is none."""
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    return next((option for option in options if dataclasses.is_dataclass(option)), None)


def said(error: Mapping[str, Any]) -> str:
    """What pydantic found wrong; our own checks have said already what they got."""
    if error["type"] == "value_error":
        return str(error["msg"]).removeprefix("Value error, ")
    return f"{error['msg']}, got {error['input']!r}"


def place(error: Mapping[str, Any], value: Any, where: str) -> str:
    """The word an error of pydantic is about; names of types that it tried are left out."""
    for part in error["loc"]:
        if isinstance(value, Mapping) and part in value:
            value, where = value[part], f"{where}.{part}"
    return where


def parameters(constructor: Any) -> dict[str, Any]:
    """The annotation of every word a constructor takes; records that only collect others are opened."""
    known: dict[str, Any] = {}
    for name, parameter in inspect.signature(constructor).parameters.items():
        record = _whole(parameter.annotation)
        if record is not None and name == "parts":
            known |= {f.name: f.type for f in dataclasses.fields(record)}
        else:
            known[name] = parameter.annotation
    return known


def gathered(constructor: Any, words: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The words as a constructor takes them: each that is a field of a record is put into it."""
    known = inspect.signature(constructor).parameters
    homes = _homes(constructor)
    found: dict[str, Any] = {}
    for key, value in words.items():
        path = (key,) if key in known else homes.get(key)
        if path is None:
            takes = parameters(constructor)
            close = nearest(key, [*takes, *homes])
            raise UsageError(f"{where}: unknown option {key!r}{close}; it has: {', '.join(takes) or 'none'}")
        _put(found, path, value, f"{where}.{key}")
    return found


def _put(found: dict[str, Any], path: Path, value: Any, where: str) -> None:
    for part in path[:-1]:
        found = found.setdefault(part, {})
        if not isinstance(found, dict):
            raise UsageError(f"{where}: stands under {part!r}, which is {found!r}")
    last = path[-1]
    if isinstance(found.get(last), dict) and isinstance(value, Mapping):
        for key, inner in value.items():
            _put(found[last], (key,), inner, f"{where}.{key}")
    elif last in found:
        raise UsageError(f"{where}: is said twice")
    else:
        found[last] = dict(value) if isinstance(value, Mapping) else value


def _homes(constructor: Any) -> dict[str, Path]:
    """Where each field of a record belongs: the shallowest place, if it is the only one that shallow."""
    found: dict[str, list[Path]] = {}
    for name, parameter in inspect.signature(constructor).parameters.items():
        for path in _fields(parameter.annotation, (name,)):
            found.setdefault(path[-1], []).append(path)
    homes: dict[str, Path] = {}
    for key, paths in found.items():
        depth = min(map(len, paths))
        nearest_ones = [path for path in paths if len(path) == depth]
        if len(nearest_ones) == 1:
            homes[key] = nearest_ones[0]
    return homes


def _fields(kind: Any, path: Path) -> Iterator[Path]:
    record = _whole(kind)
    for f in () if record is None else dataclasses.fields(record):
        yield (*path, f.name)
        yield from _fields(f.type, (*path, f.name))


def _whole(kind: Any) -> Any:
    """The record of `Record` or `Record | None`; a word that may also be something else keeps its fields to itself."""
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    others = [option for option in options if not dataclasses.is_dataclass(option) and option is not type(None)]
    return None if others else record_in(kind)
