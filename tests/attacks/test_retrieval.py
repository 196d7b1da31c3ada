"""The nearest own image: it is found, in blocks as at once, and its bytes come back exact."""

import pytest
import torch

from splitveil.attacks import Box, QueriedPairs, Retrieval, Seen, Threat, grant, oracle_of
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


class Stop(Exception):
    """Enough for now."""


def test_stopped_and_called_again_it_asks_for_no_image_twice(monkeypatch, tmp_path):
    monkeypatch.setattr(room, "CHUNK", 2)
    victims, asked, told, draw = WORLD.part(5, 0, "victims"), [], [], QueriedPairs.draw

    def counted(pairs, index, **words):
        asked.extend(index.tolist() if len(index) <= 2 and len(pairs) == len(OWN) else [])
        return draw(pairs, index, **words)

    def stop(check):
        told.append(check)
        raise Stop

    oracle = oracle_of(WORLD.client())
    known = grant(Threat(Box.BLACK), oracle=oracle, auxiliary=OWN, selection=WORLD.part(20, 0, "selection"))
    whole = Retrieval(k=3).fit(known, seed=0)
    monkeypatch.setattr(QueriedPairs, "draw", counted)
    for _ in range(4):
        with pytest.raises(Stop):
            Retrieval(k=3).fit(known, seed=0, watch=stop, state=tmp_path / "fit")
    again = Retrieval(k=3).fit(known, seed=0, state=tmp_path / "fit")
    n_calls = 5
    assert len(asked) == room.ASKED * len(OWN) + n_calls  # each call looks at one image's shape
    assert [check.step for check in told] == [8, 16, 24, 30]
    assert torch.equal(again(sent(victims)), whole(sent(victims)))
    assert again.health == whole.health


def test_it_tells_how_far_it_is(monkeypatch):
    monkeypatch.setattr(room, "CHUNK", 7)
    told = []
    oracle = oracle_of(WORLD.client())
    known = grant(Threat(Box.BLACK), oracle=oracle, auxiliary=OWN, selection=WORLD.part(20, 0, "selection"))
    health = Retrieval().fit(known, seed=0, watch=told.append).health
    assert [check.step for check in told] == [8, 9, 9]  # of nine pieces; then with the error on selection images
    assert told[-1].score == health.selection_mse != told[0].score
