"""Every word of every entry of the catalog as JSON schema: names, types and defaults, from constructors' signatures."""

import dataclasses
import inspect
import warnings
from typing import Any

from splitveil.cli import catalog
from splitveil.cli.words import parameters

Word = tuple[Any, Any]  # annotation, default
EMPTY = inspect.Parameter.empty


def entries(kind: str, shapes: dict[str, Any], *, shared: type | None = None) -> list[dict[str, Any]]:
    """One schema a name; records they share are added to `shapes`. `shared`: words that every entry has too."""
    made = []
    for name, entry in catalog.TABLES[kind].items():
        constructor = entry.load()
        words = {**_words(constructor), **({} if shared is None else _words(shared))}
        usual = {} if shared is None else _usual(constructor)
        properties = {"name": {"const": name}}
        for key, (annotation, default) in words.items():
            properties[key] = _schema(annotation, default if usual.get(key) is None else usual[key], shapes)
        needed = [key for key, (_, default) in words.items() if default is EMPTY and usual.get(key) is None]
        made.append(
            {
                "title": name,
                "description": entry.line,
                "type": "object",
                "properties": properties,
                "required": ["name", *needed],
            }
        )
    return made


def _usual(constructor: Any) -> dict[str, Any]:
    """What a penalty's source says of its weight."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the literal ones warn that they protect little
        return dataclasses.asdict(constructor().usual)


def _words(constructor: Any) -> dict[str, Word]:
    defaults = {name: p.default for name, p in inspect.signature(constructor).parameters.items()}
    return {name: (kind, defaults.get(name)) for name, kind in parameters(constructor).items()}


def _schema(annotation: Any, default: Any, shapes: dict[str, Any]) -> dict[str, Any]:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticSchemaGenerationError

    try:
        found = TypeAdapter(annotation).json_schema(ref_template="#/$defs/{model}")
    except PydanticSchemaGenerationError:
        return {}
    shapes |= found.pop("$defs", {})
    if default is None or isinstance(default, bool | int | float | str | list):
        found = {**found, "default": default}
    return found
