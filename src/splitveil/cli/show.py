"""Commands that only look: list, doctor, data check."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from splitveil.check import UsageError
from splitveil.cli import catalog
from splitveil.cli.display import out, print_json


@dataclass(frozen=True)
class Extra:
    """An optional part of the installation."""

    modules: tuple[str, ...]
    purpose: str


PATHS = (
    "or a path: CIFAR-10/100 python batches, TinyImageNet-200, folders root/class/*, .npz; see `splitveil data check`"
)

EXTRAS = {
    "onnx": Extra(("onnx", "onnxscript", "onnxruntime"), "exporting the client, which is still to come"),
    "serve": Extra(("fastapi", "uvicorn", "httpx"), "serving the head, which is still to come"),
    "dp": Extra(("dp_accounting", "opendp"), "exact discrete noise and a second accountant"),
    "sweep": Extra(("optuna",), "sweeps on one machine, which are still to come"),
    "cluster": Extra(("ray",), "sweeps on many machines, which are still to come"),
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
    if kind == "datasets":
        out().print(PATHS)
    if kind in ("mechanisms", "regularizers"):
        out().print("options of each, with defaults: `splitveil config schema`", markup=False)


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
        console.print(f"[bold]{'extra ' + name:14}[/] {escape(state)} ({extra.purpose})", soft_wrap=True)


def data_check(
    source: str, *, size: int | None, skip_broken: bool, people: bool, roles: Sequence[str], as_json: bool
) -> None:
    """`splitveil data check`."""
    import torch

    from splitveil.data import Decoding, Role, read

    given = dict(_given(words) for words in roles)
    data = read(source, roles=given, people=people, decoding=Decoding(size=size, skip_broken=skip_broken))
    kind = "people" if data.people else "classes"
    parts = {role.value: data.part(role) for role in Role}
    counts = {
        name: {"images": len(part), kind: torch.unique(part.labels[part.labels >= 0]).numel()}
        for name, part in parts.items()
    }
    if as_json:
        facts = {"name": data.name, "image_shape": list(data.image_shape), "n_classes": data.n_classes}
        streamed = any(part.is_streamed for part in parts.values())
        more = {"people": data.people, "streamed": streamed, "notes": list(data.notes), "sha256": data.sha256}
        print_json({**facts, "roles": counts, **more})
        return
    console = out()
    console.print(f"[bold]{escape(data.name)}[/]  {'×'.join(map(str, data.image_shape))}  {data.n_classes} {kind}")
    for name, seen in counts.items():
        of = f"of {seen[kind]} {kind}" if seen[kind] else f"of other {kind}"
        console.print(f"  {name:10} {seen['images']:7,} images {of}")
    console.print(f"  sha256     {data.sha256}")
    for note in data.notes:
        console.print(f"  note       {note}", markup=False, soft_wrap=True)


def _given(words: str) -> tuple[str, str]:
    role, equals, source = words.partition("=")
    if not (role and equals and source):
        raise UsageError(f"--role wants ROLE=SOURCE, got {words!r}; for example --role auxiliary=faces.npz")
    return role, source


def _missing(extra: Extra) -> list[str]:
    return [name for name in extra.modules if importlib.util.find_spec(name) is None]
