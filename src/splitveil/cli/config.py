"""A run in words: defaults, then a YAML file, then `-s a.b=c`, checked before anything is built.

Plain frozen dataclasses hold the settings; pydantic checks types and writes the schema. It is imported only when words
have to be read, so code that builds a `Config` itself runs without it.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from splitveil.check import UsageError
from splitveil.cli.words import check_keys, said
from splitveil.data import Decoding
from splitveil.split import Bottleneck
from splitveil.training import Recipe


@dataclass(frozen=True)
class DataConfig:
    """Which images."""

    source: str = "fashion"  # a name of `splitveil list datasets`, or a file or folder
    roles: dict[str, str] = field(default_factory=dict)  # a role from another source: {auxiliary: faces.npz}
    people: bool = False  # classes are identities: roles are disjoint in people, and no reconstruction is kept
    decoding: Decoding = field(default_factory=Decoding)  # how image files are read


@dataclass(frozen=True)
class ModelConfig:
    """Which network, and where it is cut."""

    name: str = "small-cnn"  # a name of `splitveil list networks`, or package.module:factory
    cut: str | int | None = (
        None  # submodule after which it is cut (1 in YAML is "1"); the network's own default if left out
    )
    bottleneck: Bottleneck | None = field(default_factory=lambda: Bottleneck(channels=8, activation="sigmoid"))
    init: str | None = None  # weights of the whole network, .safetensors


@dataclass(frozen=True)
class Config:
    """One run, complete: feeding it back reproduces it."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    mechanism: list[dict[str, Any]] = field(default_factory=lambda: [{"name": "gaussian", "std": 0.025}])
    regularizers: list[dict[str, Any]] = field(default_factory=list)
    training: Recipe = field(default_factory=Recipe)


def read_config(path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """Defaults, then the file, then each `a.b=c`."""
    words: dict[str, Any] = read_yaml(path) if path else {}
    for override in overrides:
        _override(words, override)
    return parse(words)


def parse(words: Mapping[str, Any]) -> Config:
    """Check words against the settings and build them."""
    from pydantic import TypeAdapter, ValidationError

    check_keys(words, Config, "")
    try:
        return TypeAdapter(Config).validate_python(dict(words))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"] if not str(part).startswith("Bottleneck"))
        raise UsageError(f"{where or 'config'}: {said(first)}"[:300]) from None


def schema() -> dict[str, Any]:
    """JSON schema of the whole config, with every word of every mechanism and regularizer."""
    from pydantic import TypeAdapter

    from splitveil.cli.build import TermWords
    from splitveil.cli.vocabulary import entries

    whole = TypeAdapter(Config).json_schema()
    shapes = whole.setdefault("$defs", {})
    for kind, key, shared in (("mechanisms", "mechanism", None), ("regularizers", "regularizers", TermWords)):
        whole["properties"][key]["items"] = {"oneOf": entries(kind, shapes, shared=shared)}
    return whole


def as_words(config: Config) -> dict[str, Any]:
    """The complete config as plain YAML values."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return plain


def to_yaml(config: Config) -> str:
    """The complete config as YAML text."""
    import yaml

    return yaml.safe_dump(as_words(config), sort_keys=False, allow_unicode=True)


def read_yaml(path: Path) -> dict[str, Any]:
    """The words of a YAML file, or one line that says where it goes wrong."""
    import yaml

    try:
        words = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; `splitveil config show` prints a config to start from") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not YAML"
        raise UsageError(f"{path}:{where} {problem}; the file must be YAML, see `splitveil config show`") from None
    if words is None:
        return {}
    if not isinstance(words, dict):
        raise UsageError(f"{path}: wanted `key: value` lines, got a {type(words).__name__}")
    return words


def _override(words: dict[str, Any], text: str) -> None:
    import yaml

    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"-s wants key=value, got {text!r}; for example -s training.epochs=5")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError:
        raise UsageError(
            f"-s {key}: {value!r} is not a YAML value; quote it: -s 'mechanism=[{{name: gaussian, std: 0.1}}]'"
        ) from None
    *parents, last = key.strip().split(".")
    level: Any = words
    for i, part in enumerate(parents):
        level = _step_into(level, part, ".".join(parents[: i + 1]))
    if isinstance(level, list):
        level[_index(level, last, key)] = parsed
    else:
        level[last] = parsed


def _step_into(level: Any, part: str, where: str) -> Any:
    if isinstance(level, list):
        return level[_index(level, part, where)]
    if part not in level:
        default = as_words(Config()).get(part) if where == part else None
        level[part] = default if isinstance(default, list) else {}
    if not isinstance(level[part], dict | list):
        raise UsageError(f"-s {where}: holds {level[part]!r}, which has no keys below it")
    return level[part]


def _index(level: list[Any], part: str, where: str) -> int:
    if not part.isdigit() or int(part) >= len(level):
        raise UsageError(f"-s {where}: {part!r} is not a place in a list of {len(level)} entries")
    return int(part)
