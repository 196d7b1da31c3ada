"""`splitveil memory demo`: a private memory of real text, where it works and where it does not.

Private rows are descriptions of packages; a document is a source package with all its descriptions. A query is a
description of a package that is in neither half, and the answer is the mix of topics among the private texts that
resemble it.
"""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splitveil.check import UsageError
from splitveil.cli.display import err, print_json
from splitveil.cli.display import out as stdout
from splitveil.cli.memory_corpus import Text, corpus, embed
from splitveil.private_attention import Bounds, PolynomialFeatures, PrivacySpec, PrivateKV, PublicPrior

D = 16  # dimensions kept of 384, chosen on public texts
TOPICS = 12  # the most frequent ones; the rest are left out
PUBLIC_SHARE, QUERIES = 0.25, 400
LEAST_PRIVATE = 500  # private texts that are left when the corpus is short
BETAS = (1.0, 2.0, 4.0, 8.0, 16.0)


class World(NamedTuple):
    """The corpus as the demo uses it."""

    source: str
    topics: list[str]
    public: Tensor
    public_topics: Tensor
    private: Tensor
    private_topics: Tensor
    documents: list[str]
    queries: Tensor
    query_topics: Tensor
    project: Callable[[NDArray[np.float32]], Tensor]  # an embedding → the memory's coordinates


def make_world(rows: int, seed: int, cache: Path | None) -> World:
    """Units are dealt out whole: no source package is in two halves."""
    source, texts = corpus()
    topics = [name for name, _ in Counter(t.topic for t in texts).most_common(TOPICS)]
    texts = [t for t in texts if t.topic in topics]
    units = sorted({t.unit for t in texts})
    place = dict(zip(units, np.random.default_rng(seed).random(len(units)), strict=True))
    texts = sorted(texts, key=lambda t: place[t.unit])
    n_public = int(rows * PUBLIC_SHARE)
    if len(texts) < QUERIES + n_public + LEAST_PRIVATE:
        raise UsageError(f"--rows {rows} is too many for {len(texts)} texts ({source}); lower it")
    texts = texts[: QUERIES + n_public + rows]
    vectors = embed([t.text for t in texts], cache=cache)
    names = torch.tensor([topics.index(t.topic) for t in texts])
    cut = _whole_units(texts, QUERIES), _whole_units(texts, QUERIES + n_public)
    project = _projection(vectors[cut[0] : cut[1]])
    flat = project(vectors)
    return World(
        source,
        topics,
        flat[cut[0] : cut[1]],
        names[cut[0] : cut[1]],
        flat[cut[1] :],
        names[cut[1] :],
        [t.unit for t in texts[cut[1] :]],
        flat[: cut[0]],
        names[: cut[0]],
        project,
    )


def demo(*, rows: int, epsilon: float, seed: int, cache: Path | None, as_json: bool) -> None:
    """Build a memory for every β and show how far its answers are from exact attention."""
    _rehearse(epsilon)
    started = time.monotonic()
    world = make_world(rows, seed, cache)
    if not as_json:
        err().print(
            f"{len(world.private)} private texts in {len(set(world.documents))} documents ({world.source}), "
            f"{len(world.public)} public; embedded in {time.monotonic() - started:.0f} s",
            markup=False,
            soft_wrap=True,
        )
    table = [measure(world, beta, epsilon) for beta in BETAS]
    if as_json:
        print_json({"epsilon": epsilon, "private_texts": len(world.private), "rows": table})
        return
    lines = [f"document-level ε = {epsilon:g}, δ = 1e-6", "   β   error   topic: exact  private  flagged"]
    lines += [
        f"{row['beta']:4g}   {row['relative_error']:5.2f}   {row['exact_accuracy']:12.1%}  "
        f"{row['private_accuracy']:7.1%}  {row['flagged']:7.1%}"
        for row in table
    ]
    lines += [
        "error: ‖private − exact‖ over the distance of the exact answer from the public mix of topics (1: none)",
        "Soft questions (small β) are answered; a sharp one asks for single rows, and those are what is protected.",
    ]
    stdout().print("\n".join(lines), markup=False, soft_wrap=True)


def measure(world: World, beta: float, epsilon: float) -> dict[str, Any]:
    """One memory at one β: relative error, and how often the largest topic is the query's own."""
    values = torch.eye(len(world.topics), dtype=torch.float64)
    prior = values[world.public_topics]
    bounds = Bounds.from_public(world.public, prior, quantile=1.0)
    products = world.public[:500] @ (world.public - torch.as_tensor(bounds.key_center)).T
    features = PolynomialFeatures(D, 2).fit_public(products, beta)
    builder = PrivateKV.builder(_spec(epsilon), bounds, features, len(world.topics))
    memory = builder.add(world.private, values[world.private_topics], world.documents).release()
    memory = PublicPrior(world.public, prior).denoise(memory)
    answer = memory.attend(world.queries)
    weights = torch.softmax(beta * world.queries @ world.private.T, dim=1)
    exact = weights @ values[world.private_topics]
    base = torch.as_tensor(bounds.value_center)  # what is known without the private texts
    error = (answer.output - exact).norm(dim=1) / (exact - base).norm(dim=1)
    return {
        "beta": beta,
        "relative_error": float(error.median()),
        "exact_accuracy": _accuracy(exact, base, world.query_topics),
        "private_accuracy": _accuracy(answer.output, base, world.query_topics),
        "flagged": float(answer.flagged.double().mean()),
    }


def _spec(epsilon: float) -> PrivacySpec:
    return PrivacySpec(epsilon, 1e-6, unit="document", document_rows=2.0)


def _rehearse(epsilon: float) -> None:
    """Release a memory of no rows: an ε that cannot be had is told before the texts are embedded."""
    features = PolynomialFeatures(D, 2).taylor(1.0)
    PrivateKV.builder(_spec(epsilon), Bounds(1.0, 1.0, 1.0), features, TOPICS).release()


def _accuracy(answers: Tensor, base: Tensor, wanted: Tensor) -> float:
    """Of the topic that stands out most from the public mix."""
    return float(((answers / base).argmax(1) == wanted).double().mean())


def _projection(public: NDArray[np.float32]) -> Callable[[NDArray[np.float32]], Tensor]:
    """On the first D principal directions of the public texts, as unit vectors."""
    center = public.mean(0, dtype=np.float64)
    directions = np.linalg.svd(public - center, full_matrices=False)[2][:D]

    def project(vectors: NDArray[np.float32]) -> Tensor:
        flat = (vectors - center) @ directions.T
        return torch.from_numpy(flat / np.linalg.norm(flat, axis=1, keepdims=True))

    return project


def _whole_units(texts: list[Text], cut: int) -> int:
    """The nearest place after `cut` where a unit ends."""
    while 0 < cut < len(texts) and texts[cut].unit == texts[cut - 1].unit:
        cut += 1
    return cut
