"""What a threat model grants, and that victims have no place in it."""

from dataclasses import fields
from inspect import signature

import pytest
import torch

from splitveil.attacks import Box, Knowledge, RecordedPairs, Threat, grant, oracle_of
from splitveil.check import UsageError
from splitveil.data import ImageSet
from splitveil.randomness import SeededSource
from worlds.linear_gaussian import world

WORLD = world()
ROLES = {"auxiliary": WORLD.part(50, 0, "a"), "selection": WORLD.part(20, 0, "s"), "private": WORLD.part(30, 0, "t")}


def known(threat: Threat) -> Knowledge:
    return grant(threat, oracle=oracle_of(WORLD.client()), **ROLES, n_classes=2)


def test_there_is_no_way_to_hand_over_a_victim():
    names = {field.name for field in fields(Knowledge)} | set(signature(grant).parameters)
    assert not any("victim" in name for name in names)
    kinds = [field.type for field in fields(Knowledge)] + [p.annotation for p in signature(grant).parameters.values()]
    assert ImageSet not in kinds


def test_a_white_box_holds_the_client_and_a_black_box_does_not():
    assert known(Threat()).client is not None
    assert known(Threat(Box.BLACK)).client is None


@pytest.mark.parametrize("threat", [Threat(), Threat(Box.BLACK), Threat(Box.BLACK, releases=4)])
def test_pairs_answer_but_do_not_lead_to_the_client(threat):
    held = known(threat)
    for pairs in (held.pairs, held.selection):
        assert pairs._oracle.client is None
        drawn = pairs.first(3, source=SeededSource(0))
        wanted = oracle_of(WORLD.client()).release(drawn.x, source=SeededSource(0), releases=threat.releases)
        assert torch.equal(drawn.seen.z_sent, wanted)


def test_an_insider_holds_the_training_images_too():
    assert len(known(Threat()).auxiliary) == 50
    assert len(known(Threat(insider=True)).auxiliary) == 80
    with pytest.raises(UsageError, match="private training images"):
        grant(
            Threat(insider=True),
            oracle=oracle_of(WORLD.client()),
            auxiliary=ROLES["auxiliary"],
            selection=ROLES["selection"],
        )


def test_query_free_has_no_pairs():
    held = known(Threat(Box.QUERY_FREE))
    assert (held.pairs, held.selection, held.client) == (None, None, None)
    assert len(held.auxiliary) == 50


def test_n_queries_are_n_queries():
    held = known(Threat(Box.BLACK, queries=40))
    assert isinstance(held.pairs, RecordedPairs)
    assert held.selection is not None
    assert len(held.pairs) + len(held.selection) == 40
    with pytest.raises(UsageError, match="as many images"):
        known(Threat(Box.BLACK, queries=1000))


def test_queries_are_counted(monkeypatch):
    asked = 0

    def client(x: torch.Tensor) -> torch.Tensor:
        nonlocal asked
        asked += len(x)
        return x.flatten(1)

    held = grant(Threat(Box.BLACK, queries=40), oracle=oracle_of(client), **ROLES)
    assert held.pairs is not None
    held.pairs.draw(torch.arange(8), source=SeededSource(0), augment=True)
    assert asked == 40


def test_a_function_has_no_inside():
    with pytest.raises(UsageError, match="attack it as a black box"):
        grant(Threat(), oracle=oracle_of(lambda x: x.flatten(1)), **ROLES)
