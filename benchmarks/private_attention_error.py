"""How far private answers are from exact attention, on real sentence embeddings, cell by cell.

    python benchmarks/private_attention_error.py            every missing cell of the table (about 10 min on one core)
    python benchmarks/private_attention_error.py --plot     docs/private-attention-error.svg from the cells
    python benchmarks/private_attention_error.py --table    the cells at ε = 1 as markdown

A cell is one (d, n, β): a JSON in results/private_attention/ with the median over 300 queries of ‖answer − exact‖ /
‖exact‖, averaged over three draws of noise, for every ε and method. Data: tests/golden/debian_minilm64.npz (see
private_attention_data.py); keys = values = unit vectors of the first d columns. Polynomials are fitted to products of
public rows with each other: none of the 300 queries is seen before it is asked. n = 100,000 and 30,000 are drawn with
replacement from the 7,000 private rows. Noise is seeded, so the numbers repeat; a deployed release differs in its
random numbers only.
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from splitveil.cli.runs import environment
from splitveil.private_attention import (
    Bounds,
    DPTreeCrossAttention,
    NystromFeatures,
    PolynomialFeatures,
    PrivacySpec,
    PrivateKV,
    PublicPrior,
    PublicRegression,
)
from splitveil.private_attention.kernel import FeatureMap

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "golden" / "debian_minilm64.npz"
RESULTS = ROOT / "results" / "private_attention"
FIGURE = ROOT / "docs" / "private-attention-error.svg"
DIMENSIONS, SIZES, BETAS, EPSILONS = (4, 16, 32, 64), (1_000, 7_000, 100_000), (1, 2, 4, 8), (0.5, 1, 2, 4, 8)
EXTRA = ((16, 6_700, 2), (16, 30_000, 4))  # cells of the design's own table
DRAWS = 3
STAND_INS = 150  # public rows that a polynomial is fitted to in place of queries
REGRESSED = 1_000  # features up to which regression on public rows is measured too
FOREIGN = ("libs", "libdevel", "doc")  # topics of the public rows when they are unlike the private ones


class Rows(NamedTuple):
    queries: Tensor
    public: Tensor
    private: Tensor
    foreign: Tensor


Answers = Callable[[PrivateKV], Tensor]


def load(d: int, n: int) -> Rows:
    """Unit vectors of the first d columns; `n` private ones."""
    with np.load(DATA) as data:
        q, public, private = (_unit(data[name][:, :d]) for name in ("queries", "public", "private"))
        topics = data["topics"][data["topic"][len(q) : len(q) + len(public)]]
    chosen = np.arange(n) if n <= len(private) else np.random.default_rng(0).integers(len(private), size=n)
    return Rows(q, public, private[chosen], public[np.isin(topics, FOREIGN)])


def _unit(x: np.ndarray) -> Tensor:
    x = x.astype(np.float64)
    return torch.from_numpy(x / np.linalg.norm(x, axis=1, keepdims=True))


def exact_attention(rows: Rows, beta: float) -> Tensor:
    parts = [torch.softmax(beta * q @ rows.private.T, dim=1) @ rows.private for q in rows.queries.split(50)]
    return torch.cat(parts)


def error(answer: Tensor, exact: Tensor) -> float:
    return float(((answer - exact).norm(dim=1) / exact.norm(dim=1)).median())


def released(
    rows: Rows, features: FeatureMap, methods: dict[str, Answers], exact: Tensor
) -> dict[str, dict[str, float]]:
    """Errors of one kernel: rows are summed once, noise is drawn for every ε."""
    d, bounds = rows.queries.shape[1], Bounds(1.0, 1.0, 1.0)
    total = (
        PrivateKV.builder(PrivacySpec(1.0, 1e-6), bounds, features, d, seed=0).add(rows.private, rows.private)._total
    )
    found: dict[str, dict[str, float]] = {name: {} for name in methods}
    for epsilon in EPSILONS:
        draws: dict[str, list[float]] = {name: [] for name in methods}
        for seed in range(DRAWS):
            builder = PrivateKV.builder(PrivacySpec(epsilon, 1e-6), bounds, features, d, seed=seed)
            builder._total = total.clone()  # what adding the rows again would give
            memory = builder.release()
            for name, answers in methods.items():
                draws[name].append(error(answers(memory), exact))
        for name, values in draws.items():
            found[name][str(epsilon)] = float(np.mean(values))
    return found


def of_tree(rows: Rows, beta: float, exact: Tensor) -> dict[str, dict[str, float | None]]:
    found: dict[str, dict[str, float | None]] = {
        "tree": {},
        "tree: the paper's relative bound": {},
        "tree: the paper's additive bound": {},
    }
    for epsilon in EPSILONS:
        spec, bounds = PrivacySpec(epsilon, 1e-6), Bounds(1.0, 1.0, 1.0)
        draws = []
        for seed in range(DRAWS):
            tree = DPTreeCrossAttention(rows.private, rows.private, spec, bounds, beta=beta, seed=seed)
            draws.append(error(tree.attend(rows.queries), exact))
        limits = tree.paper_bounds()
        found["tree"][str(epsilon)] = float(np.mean(draws))
        found["tree: the paper's relative bound"][str(epsilon)] = _finite(limits.relative)
        found["tree: the paper's additive bound"][str(epsilon)] = _finite(limits.additive)
    return found


def _finite(bound: float) -> float | None:
    """A bound that says nothing (the series is off by more than the weight itself) is null in the JSON."""
    return bound if math.isfinite(bound) else None


def cell(d: int, n: int, beta: float) -> dict[str, dict[str, float | None]]:
    rows = load(d, n)
    exact = exact_attention(rows, beta)
    products = rows.public[:STAND_INS] @ rows.public[STAND_INS:].T  # public rows stand in for queries
    q, public, foreign = rows.queries, rows.public, rows.foreign

    def plain(memory: PrivateKV) -> Tensor:
        return memory.attend(q).output

    ways: dict[str, Answers] = {
        "": plain,
        " + prior": lambda m: plain(PublicPrior(public, public).denoise(m)),
        " + regression": lambda m: PublicRegression(m, public).attend(q),
        " + prior + regression": lambda m: PublicRegression(PublicPrior(public, public).denoise(m), public).attend(q),
        " + foreign prior": lambda m: plain(PublicPrior(foreign, foreign).denoise(m)),
        " + foreign regression": lambda m: PublicRegression(m, foreign).attend(q),
    }
    out: dict[str, dict[str, float | None]] = {}
    for degree in (2, 3) if d <= 32 else (2,):
        few = {name: way for name, way in ways.items() if "regression" not in name}  # minutes of algebra for d = 64
        some = ways if math.comb(d + degree, degree) < REGRESSED else few
        features = PolynomialFeatures(d, degree).fit_public(products, beta)
        named = {f"least squares {degree}{suffix}": way for suffix, way in some.items()}
        out |= released(rows, features, named, exact)
        out |= released(rows, PolynomialFeatures(d, degree).taylor(beta), {f"taylor {degree}": plain}, exact)
    if d <= 8:
        out |= released(rows, NystromFeatures(public[:250], beta), {"nystrom": plain}, exact)
        out |= of_tree(rows, beta, exact)
    constant = {"mean": rows.private.mean(0), "public mean": public.mean(0)}
    for name, value in constant.items():
        out[name] = {str(e): error(value.expand_as(exact), exact) for e in EPSILONS}
    weights = torch.softmax(beta * q @ public.T, dim=1)
    out["exact attention over the public rows"] = {str(e): error(weights @ public, exact) for e in EPSILONS}
    return out


def plot() -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    cells = {
        tuple(c["cell"].values()): c["error"] for c in (json.loads(f.read_text()) for f in RESULTS.glob("error-*.json"))
    }
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), sharey=True)
    shown = ("least squares 2", "least squares 2 + prior", "taylor 2", "mean")
    for axis, n in zip(axes[:2], (7_000, 100_000), strict=True):
        for name in shown:
            axis.plot(EPSILONS, [cells[16, n, 2][name][str(e)] for e in EPSILONS], marker="o", label=name)
        axis.set(title=f"d = 16, β = 2, n = {n:,}", xlabel="ε (δ = 1e-6)", xscale="log", yscale="log")
    axes[0].set_ylabel("median relative error")
    axes[0].legend()
    for beta in BETAS:
        axes[2].plot(
            SIZES, [cells[16, n, beta]["least squares 2 + prior"]["1"] for n in SIZES], marker="o", label=f"β = {beta}"
        )
    axes[2].set(title="d = 16, ε = 1, with prior", xlabel="private rows n", xscale="log")
    axes[2].legend()
    for axis in axes:
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(FIGURE, metadata={"Date": None})


def table(epsilon: str = "1") -> str:
    """Markdown: one line a (d, n), the methods for every β."""
    names = {
        "LS-2": "least squares 2",
        "LS-2 + prior": "least squares 2 + prior",
        "LS-3": "least squares 3",
        "Taylor-2": "taylor 2",
        "Nyström": "nystrom",
        "tree": "tree",
        "mean": "mean",
    }
    lines = ["| d | n | β | " + " | ".join(names) + " |", "|---" * (3 + len(names)) + "|"]
    for d in DIMENSIONS:
        for n in SIZES:
            for beta in BETAS:
                found = json.loads((RESULTS / f"error-d{d}-n{n}-b{beta}.json").read_text())["error"]
                cells = [f"{found[name][epsilon]:.3f}" if name in found else "" for name in names.values()]
                lines.append(f"| {d} | {n:,} | {beta} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", action="store_true")
    parser.add_argument("--table", action="store_true", help="print the cells at ε = 1 as markdown")
    words = parser.parse_args()
    if words.plot or words.table:
        plot() if words.plot else print(table())
        return
    torch.set_num_threads(1)
    facts = environment()  # now: whatever is committed meanwhile is not what runs
    RESULTS.mkdir(parents=True, exist_ok=True)
    for d, n, beta in [*((d, n, b) for d in DIMENSIONS for n in SIZES for b in BETAS), *EXTRA]:
        file = RESULTS / f"error-d{d}-n{n}-b{beta}.json"
        if file.exists():
            continue
        found = {
            "command": "python benchmarks/private_attention_error.py",
            "cell": {"d": d, "n": n, "beta": beta},
            "delta": 1e-6,
            "error": cell(d, n, float(beta)),
            "environment": facts,
        }
        file.write_text(json.dumps(found, indent=1) + "\n")
        print(file.name, flush=True)


if __name__ == "__main__":
    main()
