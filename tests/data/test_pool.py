"""Dealing out roles: disjoint, proportional, repeatable; of people also disjoint in identity."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from splitveil.check import UsageError
from splitveil.data import UNLABELED, ImageSet, Part, Role
from splitveil.data.part import channels_last_part
from splitveil.data.pool import Pool, deal, distinct, official


def _pool(counts: list[int], *, people: bool = False, family: str = "", offset: int = 0) -> Pool:
    """Images numbered by their pixels, class after class."""
    labels = np.repeat(np.arange(len(counts)), counts)
    number = (np.arange(len(labels)) + offset).astype("<u4")
    part = channels_last_part(number.view(np.uint8).reshape(-1, 2, 2, 1), labels)
    return Pool("pool", part, tuple(f"c{k}" for k in range(len(counts))), people=people, family=family)


def _numbers(part: Part) -> list[int]:
    return part.pixels.numpy().reshape(len(part), 4).copy().view("<u4")[:, 0].tolist()


def _all_numbers(data: ImageSet) -> list[int]:
    return [number for role in Role for number in _numbers(data.part(role))]


@settings(deadline=None, max_examples=40)
@given(counts=st.lists(st.integers(4, 60), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_every_image_gets_one_role_and_keeps_its_label(counts: list[int], seed: int) -> None:
    pool = _pool(counts)
    data = deal(pool, seed=seed, given={})
    assert sorted(_all_numbers(data)) == list(range(len(pool)))
    for role in Role:
        part = data.part(role)
        assert part.labels.tolist() == pool.labels[_numbers(part)].tolist()


@settings(deadline=None, max_examples=40)
@given(counts=st.lists(st.integers(20, 60), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_roles_keep_the_proportions_of_classes(counts: list[int], seed: int) -> None:
    data = deal(_pool(counts), seed=seed, given={})
    shares = {Role.AUXILIARY: 0.20, Role.SELECTION: 0.05, Role.VICTIMS: 0.15}
    for role, share in shares.items():
        got = torch.bincount(data.part(role).labels, minlength=len(counts))
        assert got.tolist() == [round(share * count) for count in counts]


def test_roles_depend_on_the_seed_alone() -> None:
    first, again, other = (deal(_pool([30, 30]), seed=seed, given={}) for seed in (1, 1, 2))
    assert first.sha256 == again.sha256
    assert first.sha256 != other.sha256


@settings(deadline=None, max_examples=30)
@given(counts=st.lists(st.integers(8, 30), min_size=2, max_size=5), n=st.integers(1, 12))
def test_first_images_of_a_part_hold_classes_evenly(counts: list[int], n: int) -> None:
    train = deal(_pool(counts), seed=0, given={}).train
    present = torch.bincount(train.labels, minlength=len(counts))
    got = torch.bincount(train.take(min(n, len(train))).labels, minlength=len(counts))
    spare = got < present  # classes that could have given more
    assert int(got.max()) - int(got[spare].min() if spare.any() else got.max()) <= 1


def test_given_roles_leave_the_pool_to_the_others() -> None:
    elsewhere = _pool([3, 3], offset=1000).part
    data = deal(_pool([20, 20]), seed=0, given={Role.AUXILIARY: elsewhere})
    assert data.auxiliary is elsewhere
    assert len(data.train) == 40 - 2 * 1 - 2 * 3


def test_copies_are_dropped_and_counted() -> None:
    pool = _pool([3, 2])
    twice = pool.take(np.array([0, 1, 0, 2, 3, 4, 4]))
    kept = distinct(twice)
    assert kept.labels.tolist() == [0, 0, 0, 1, 1]
    assert kept.notes == ("2 exact copies dropped",)
    assert distinct(pool) is pool


def test_classes_too_small_to_be_dealt_are_named() -> None:
    with pytest.raises(UsageError, match="class c1 of pool has 3 images, needs 4 to be dealt into roles"):
        deal(_pool([20, 3]), seed=0, given={})
    with pytest.raises(UsageError, match="class c0 of pool has 1 images, needs 2"):
        deal(_pool([1, 8], people=True), seed=0, given={Role.AUXILIARY: _pool([3], offset=99).part.unlabeled()})


def test_shared_images_are_refused() -> None:
    pool = _pool([20, 20])
    with pytest.raises(UsageError, match="roles train and victims of set 'pool' hold the same image"):
        deal(pool, seed=0, given={Role.VICTIMS: pool.part})


@settings(deadline=None, max_examples=30)
@given(counts=st.lists(st.integers(4, 30), min_size=5, max_size=12), seed=st.integers(0, 99))
def test_people_are_strangers_between_auxiliary_selection_and_victims(counts: list[int], seed: int) -> None:
    pool = _pool(counts, people=True)
    data = deal(pool, seed=seed, given={})
    who = {role: set(pool.labels[_numbers(data.part(role))].tolist()) for role in Role}
    assert not who[Role.AUXILIARY] & (who[Role.TRAIN] | who[Role.SELECTION] | who[Role.VICTIMS])
    assert not who[Role.SELECTION] & who[Role.VICTIMS]
    assert who[Role.SELECTION] | who[Role.VICTIMS] == who[Role.TRAIN]
    assert set(data.auxiliary.labels.tolist()) == {UNLABELED}
    for role in (Role.TRAIN, Role.SELECTION, Role.VICTIMS):
        names = [f"c{label}" for label in pool.labels[_numbers(data.part(role))]]
        assert [data.classes[label] for label in data.part(role).labels] == names


def test_official_halves_give_last_and_first_of_each_class() -> None:
    rng = np.random.default_rng(0)
    train, test = _pool([10, 10, 10]), _pool([6, 6, 6], offset=500)
    train, test = train.take(rng.permutation(30)), test.take(rng.permutation(18))
    data = official(train, test, n_selection=2)
    for label in range(3):
        in_order = _numbers(train.take(np.flatnonzero(train.labels == label)).part)
        tested = _numbers(test.take(np.flatnonzero(test.labels == label)).part)
        mine = {role: [n for n, y in zip(_numbers(p), p.labels, strict=True) if y == label] for role, p in _parts(data)}
        assert mine == {
            Role.TRAIN: in_order[:8],
            Role.SELECTION: in_order[8:],
            Role.AUXILIARY: tested[:3],
            Role.VICTIMS: tested[3:],
        }


def _parts(data: ImageSet) -> list[tuple[Role, Part]]:
    return [(role, data.part(role)) for role in Role]


def test_identities_are_compared_by_name_within_a_family() -> None:
    one, same, other = (_pool([2, 2], family=family) for family in ("lfw", "lfw", "facescrub"))
    assert one.identities() == same.identities() == {"lfw/c0", "lfw/c1"}
    assert not one.identities() & other.identities()
