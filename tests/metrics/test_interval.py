"""Bootstrap intervals against theory and a slow reference."""

import sys

import numpy as np
import pytest
import torch

from splitveil.check import UsageError
from splitveil.metrics import interval
from splitveil.randomness import stream


def test_interval_of_images_has_the_width_of_the_normal_one():
    scores = torch.randn(1500, generator=stream(0, "scores"))
    found = interval(scores)
    half = 1.96 * scores.std().item() / 1500**0.5
    assert found.mean == pytest.approx(scores.mean().item(), abs=1e-6)
    assert found.high - found.mean == pytest.approx(half, rel=0.1)
    assert found.mean - found.low == pytest.approx(half, rel=0.1)


def test_interval_covers_the_truth_about_95_times_of_100():
    rng = stream(1, "coverage")
    draws = torch.rand(300, 80, generator=rng)
    hits = [(i := interval(row, replicates=300)).low <= 0.5 <= i.high for row in draws]
    assert 0.90 <= np.mean(hits) <= 0.98


@pytest.mark.parametrize(("seeds", "least", "most"), [(2, 0.4, 0.6), (3, 0.6, 0.85), (30, 0.88, 0.98)])
def test_few_seeds_that_differ_are_covered_less_often(seeds, least, most):
    effects = torch.randn(300, seeds, generator=stream(2, "effects"))
    hits = [(i := interval(row[:, None].expand(-1, 5), replicates=300)).low <= 0 <= i.high for row in effects]
    assert least <= np.mean(hits) <= most


def test_nested_resampling_agrees_with_a_slow_loop():
    rng = stream(2, "nested")
    targets, attacks = torch.randn(3, 1, 1, generator=rng), 0.5 * torch.randn(3, 2, 1, generator=rng)
    table = targets + attacks + torch.randn(1, 1, 40, generator=rng)
    slow, gen = [], np.random.default_rng(0)
    for _ in range(4000):
        images = gen.integers(40, size=40)
        total = 0.0
        for t in gen.integers(3, size=3):
            for a in gen.integers(2, size=2):
                total += table[t, a].numpy()[images].mean()
        slow.append(total / 6)
    low, high = np.quantile(slow, [0.025, 0.975])
    found = interval(table, replicates=4000)
    assert found.low == pytest.approx(low, abs=0.06 * (high - low))
    assert found.high == pytest.approx(high, abs=0.06 * (high - low))


def test_copies_of_one_seed_do_not_shrink_the_interval():
    scores = torch.rand(200, generator=stream(3, "scores"))
    alone, copied = interval(scores), interval(scores.expand(4, 5, 200))
    assert copied.high - copied.low == pytest.approx(alone.high - alone.low, rel=0.08)


def test_interval_repeats_with_its_seed():
    scores = torch.rand(2, 100, generator=stream(4, "scores"))
    assert interval(scores, seed=1) == interval(scores, seed=1)
    assert interval(scores, seed=1) != interval(scores, seed=2)


def test_chunks_do_not_change_what_is_estimated(monkeypatch):
    scores = torch.randn(50, generator=stream(5, "scores"))
    whole = interval(scores)
    monkeypatch.setattr(sys.modules["splitveil.metrics.interval"], "CHUNK", 64)  # the package's name is the function
    chunked = interval(scores)
    assert chunked.high - chunked.low == pytest.approx(whole.high - whole.low, rel=0.08)


def test_no_scores_are_refused():
    with pytest.raises(UsageError, match="at least one score"):
        interval(torch.zeros(0))
