"""Pairs belong together: z_sent is what the client sends for exactly that x."""

import torch

from splitveil.attacks import ChangedPairs, QueriedPairs, oracle_of
from splitveil.attacks.knowledge import record
from splitveil.attacks.pairs import one_release
from splitveil.randomness import SeededSource
from worlds.linear_gaussian import world

QUIET = world(noise_std=0.0)
NOISY = world(noise_std=0.2)
INDEX = torch.tensor([5, 3, 9])


def test_features_belong_to_the_view_that_was_drawn():
    pairs = QueriedPairs(QUIET.part(20, 0), oracle_of(QUIET.client()))
    drawn = pairs.draw(INDEX, source=SeededSource(0), augment=True)
    torch.testing.assert_close(drawn.seen.z_sent[0], drawn.x.flatten(1) @ QUIET.matrix.T.float())
    assert not torch.equal(drawn.x, pairs.draw(INDEX, source=SeededSource(0)).x)


def test_noise_is_fresh_at_each_draw():
    pairs = QueriedPairs(NOISY.part(20, 0), oracle_of(NOISY.client()))
    one, two = (pairs.draw(INDEX, source=SeededSource(0, "step", i)) for i in range(2))
    assert torch.equal(one.x, two.x)
    assert (one.seen.z_sent - two.seen.z_sent).abs().min() > 0


def test_recorded_answers_stay_as_they_were():
    pairs = record(oracle_of(NOISY.client()), NOISY.part(20, 0), n=10, releases=3, seed=0)
    assert len(pairs) == 10
    one, two = (pairs.draw(INDEX, source=SeededSource(0, i), augment=True) for i in range(2))
    assert torch.equal(one.x, two.x)
    assert torch.equal(one.seen.z_sent, two.seen.z_sent)
    assert one.seen.z_sent.shape == (3, 3, 16)


def test_an_average_has_the_mean_of_its_releases():
    part, oracle = NOISY.part(20, 0), oracle_of(NOISY.client())
    all_of_them = QueriedPairs(part, oracle, releases=4).draw(INDEX, source=SeededSource(1))
    queried = QueriedPairs(part, oracle, releases=4)
    averaged = ChangedPairs(queried, lambda seen: one_release(seen, 4, "mean")).draw(INDEX, source=SeededSource(1))
    torch.testing.assert_close(averaged.seen.z_sent[0], all_of_them.seen.z_sent.mean(0))
    assert averaged.seen.z_sent.shape[0] == 1
