"""Victims: what an attacker is handed does not depend on how many are attacked at once."""

import torch

from splitveil.attacks import Threat, oracle_of
from splitveil.evaluation import victims
from splitveil.evaluation.victims import Victims
from worlds.linear_gaussian import world

WORLD = world(side=8, features=6, noise_std=0.2)


def test_larger_pieces_hand_over_the_same_releases(monkeypatch):
    found = []
    for blocks, n_pieces in ((1, 4), (3, 2)):
        monkeypatch.setattr(victims, "BLOCK", 10)
        monkeypatch.setattr(victims, "BLOCKS_AT_ONCE", {"cpu": blocks})
        mine = Victims(WORLD.part(35, 0, "victims"), oracle_of(WORLD.client()))
        seen = [mine.observe(rows, Threat(releases=4, label_known=True), seed=3) for rows in mine.chunks()]
        assert len(seen) == n_pieces
        found.append((torch.cat([each.z_sent for each in seen], 1), torch.cat([each.y for each in seen])))
    assert found[0][0].shape[:2] == (4, 35)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_large_images_are_attacked_a_block_at_a_time(monkeypatch):
    monkeypatch.setattr(victims, "BLOCK", 10)
    monkeypatch.setattr(victims, "BLOCKS_AT_ONCE", {"cpu": 3})
    monkeypatch.setattr(victims, "LARGE", 8 * 8 - 1)
    mine = Victims(WORLD.part(35, 0, "victims"), oracle_of(WORLD.client()))
    assert [rows.stop - rows.start for rows in mine.chunks()] == [10, 10, 10, 5]


def test_releases_that_take_too_much_memory_are_handed_over_in_fewer_blocks(monkeypatch):
    monkeypatch.setattr(victims, "BLOCK", 10)
    monkeypatch.setattr(victims, "BLOCKS_AT_ONCE", {"cpu": 3})
    monkeypatch.setattr(victims, "MOST", 10 * 6 * 8)  # eight releases of a block
    mine = Victims(WORLD.part(35, 0, "victims"), oracle_of(WORLD.client()))
    sizes = {t: [rows.stop - rows.start for rows in mine.chunks(t)] for t in (1, 4, 64)}
    assert sizes == {1: [30, 5], 4: [20, 15], 64: [10, 10, 10, 5]}
