"""The nearest own image: it is found, in blocks as at once, and its bytes come back exact."""

import torch

from splitveil.attacks import Box, Retrieval, Seen, Threat, grant, oracle_of
from splitveil.attacks import retrieval as room
from splitveil.attacks.retrieval import nearest
from splitveil.data import Part
from splitveil.randomness import SeededSource
from worlds.linear_gaussian import world

WORLD = world(side=8, features=16, noise_std=0.05)
OWN = WORLD.part(60, 0, "auxiliary")


def fitted(attack: Retrieval, own: Part = OWN):
    oracle = oracle_of(WORLD.client())
    known = grant(Threat(Box.BLACK), oracle=oracle, auxiliary=own, selection=WORLD.part(20, 0, "selection"))
    return attack.fit(known, seed=0)


def sent(part: Part) -> Seen:
    return Seen(oracle_of(WORLD.client()).release(part.images(), source=SeededSource(5, "seen")))


def test_an_image_the_attacker_owns_comes_back_bit_by_bit():
    chosen = OWN.select(torch.tensor([3, 17, 40]))
    assert torch.equal(fitted(Retrieval())(sent(chosen)), chosen.images())


def test_the_mean_of_k_is_the_mean_of_the_k_nearest():
    victims = WORLD.part(5, 0, "victims")
    seen = sent(victims)
    library = oracle_of(replace_noise()).release(OWN.images(), source=SeededSource(0))[0]
    order = torch.cdist(seen.z_sent[0], library).argsort(1)[:, :60]
    whole = fitted(Retrieval(k=60))(seen)
    torch.testing.assert_close(whole, OWN.images()[order].mean(1))


def replace_noise():
    return world(side=8, features=16, noise_std=0.0).client()


def test_blocks_find_what_one_table_finds(monkeypatch):
    rng = torch.Generator().manual_seed(0)
    queries, library = torch.randn(7, 5, generator=rng), torch.randn(53, 5, generator=rng)
    wanted = torch.cdist(queries, library).argsort(1)[:, :4]
    for block in (3, 10, 53, 100):
        monkeypatch.setattr(room, "BLOCK", block)
        assert torch.equal(nearest(queries, library, k=4), wanted)


def test_it_says_how_it_does_on_selection_images():
    health = fitted(Retrieval()).health
    assert health.train_mse is None
    assert 0 < health.selection_mse < 0.1
