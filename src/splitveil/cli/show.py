"""Commands that only look: list, doctor, data check."""

import importlib.util
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from splitveil.cli import catalog
from splitveil.cli.display import out, print_json


@dataclass(frozen=True)
class Extra:
    """An optional part of the installation."""

    modules: tuple[str, ...]
    purpose: str


EXTRAS = {
    "onnx": Extra(("onnx", "onnxscript", "onnxruntime"), "export the client"),
    "serve": Extra(("fastapi", "uvicorn", "httpx"), "serve the head"),
    "dp": Extra(("dp_accounting", "opendp"), "exact discrete noise and a second accountant"),
    "sweep": Extra(("optuna",), "sweeps on one machine"),
    "cluster": Extra(("ray",), "sweeps on many machines"),
    "track": Extra(("tensorboard",), "TensorBoard logs"),
}


def catalog_table(kind: str, *, as_json: bool) -> None:
    """`splitveil list`."""
    entries = catalog.TABLES[kind]
    if as_json:
        print_json({name: entry.line for name, entry in entries.items()})
        return
    if not entries:
        out().print(f"no {kind} in this version")
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, entry in entries.items():
        table.add_row(f"[bold]{name}[/]", entry.line)
    out().print(table)


def doctor(*, as_json: bool) -> None:
    """`splitveil doctor`."""
    from splitveil.cli.runs import environment

    facts = environment()
    missing = {name: _missing(extra) for name, extra in EXTRAS.items()}
    if as_json:
        print_json({**facts, "missing": missing})
        return
    console = out()
    for name, value in facts.items():
        console.print(f"[bold]{name:14}[/] {value if value not in (None, []) else 'none'}")
    for name, extra in EXTRAS.items():
        state = (
            "installed" if not missing[name] else f"missing {', '.join(missing[name])}: pip install 'splitveil[{name}]'"
        )
        console.print(f"[bold]{'extra ' + name:14}[/] {state} ({extra.purpose})", markup=True)


def data_check(source: str, *, as_json: bool) -> None:
    """`splitveil data check`."""
    from splitveil.data import Role, read

    data = read(source)
    roles: dict[str, Any] = {}
    for role in Role:
        part = getattr(data, role.value)
        roles[role.value] = {"images": len(part), "classes": int(part.labels.unique().numel())}
    facts = {
        "name": data.name,
        "image_shape": list(data.image_shape),
        "n_classes": data.n_classes,
        "roles": roles,
        "sha256": data.sha256,
    }
    if as_json:
        print_json(facts)
        return
    console = out()
    console.print(f"[bold]{data.name}[/]  {'×'.join(map(str, data.image_shape))}  {data.n_classes} classes")
    for name, role_facts in roles.items():
        console.print(f"  {name:10} {role_facts['images']:7,} images of {role_facts['classes']} classes")
    console.print(f"  sha256     {data.sha256}")


def _missing(extra: Extra) -> list[str]:
    return [name for name in extra.modules if importlib.util.find_spec(name) is None]
