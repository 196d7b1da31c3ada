"""A user's own images are dealt out once and for all, each picture to one role."""

from dataclasses import replace

import pytest
import torch

from splitveil.check import UsageError
from splitveil.evaluation.roles import mean_image, roles_of, split_roles
from splitveil.randomness import stream
from worlds.small import small_images

IMAGES = torch.rand(100, 1, 8, 8, generator=stream(0, "x"))


def pictures(part) -> set[bytes]:
    return set(part.fingerprints())


def test_every_picture_has_one_role():
    roles = split_roles(IMAGES)
    parts = [pictures(part) for part in (roles.auxiliary, roles.selection, roles.victims)]
    assert [len(part) for part in parts] == [60, 15, 25]
    assert len(set.union(*parts)) == 100


def test_dealing_repeats():
    one, two = split_roles(IMAGES), split_roles(IMAGES.clone())
    assert one.sha256 == two.sha256
    assert torch.equal(one.victims.pixels, two.victims.pixels)


def test_a_picture_that_comes_twice_is_dealt_once():
    roles = split_roles(torch.cat([IMAGES, IMAGES]))
    parts = [pictures(part) for part in (roles.auxiliary, roles.selection, roles.victims)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 100


def test_labels_follow_their_images():
    labels = (IMAGES.mean((1, 2, 3)) > 0.5).long()
    victims = split_roles(IMAGES, labels).victims
    means = victims.images().mean((1, 2, 3))
    clear = (means - 0.5).abs() > 0.01  # bytes round
    assert torch.equal(victims.labels[clear], (means > 0.5).long()[clear])
    assert split_roles(IMAGES, labels).n_classes == 2
    assert split_roles(IMAGES).n_classes is None


@pytest.mark.parametrize("other", ["no labels", "one label", "more classes", "order", "shape"])
def test_whatever_is_dealt_otherwise_has_another_name(other):
    labels = torch.arange(100) % 3
    changed, more = labels.clone(), labels.clone()
    changed[0] = 1
    more[2] = 3
    dealt = {
        "no labels": split_roles(IMAGES),
        "one label": split_roles(IMAGES, changed),
        "more classes": split_roles(IMAGES, more),
        "order": split_roles(IMAGES.flip(0), labels.flip(0)),
        "shape": split_roles(IMAGES.reshape(100, 1, 4, 16), labels),
    }
    assert dealt[other].sha256 != split_roles(IMAGES, labels).sha256
    assert split_roles(IMAGES, labels.clone()).sha256 == split_roles(IMAGES, labels).sha256
    assert split_roles(IMAGES, torch.zeros_like(labels)).sha256 != split_roles(IMAGES).sha256


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (IMAGES * 255, "must lie in"),
        (IMAGES - 0.5, "must lie in"),
        (IMAGES[:10], "at least 20"),
        (IMAGES / 0, "must lie"),
    ],
)
def test_what_cannot_be_dealt_is_refused(images, message):
    with pytest.raises(UsageError, match=message):
        split_roles(images)


def test_an_image_set_keeps_its_roles():
    data = small_images()
    roles = roles_of(data)
    assert roles.private is data.train
    assert roles.victims is data.victims
    assert roles.sha256 == data.sha256


def test_the_mean_image_does_not_depend_on_chunks():
    part = small_images(n_other=31).auxiliary
    torch.testing.assert_close(mean_image(part)[0], part.images().mean(0))


def test_bounds_are_fitted_chosen_and_read_on_different_images():
    data = small_images()
    parts = roles_of(data).for_bounds()
    assert (parts.fit, parts.choose, parts.read, parts.n_classes) == (data.train, data.auxiliary, data.victims, 3)
    people = replace(roles_of(data), people=True).for_bounds()
    assert people.choose is data.selection
    own = split_roles(IMAGES).for_bounds()
    assert own.n_classes == 1
    assert len(set.union(*map(pictures, (own.fit, own.choose, own.read)))) == 100
