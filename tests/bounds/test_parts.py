"""Images of a bound: which role does what, and features that are computed once."""

import torch

from splitveil.bounds import channel_of, encoded, parts_of
from splitveil.bounds.parts import some
from worlds.linear_gaussian import world

WORLD = world(side=4, features=3)
DATA = WORLD.images(n=50, n_victims=30)


def test_features_and_classes_are_those_of_the_parts():
    known = encoded(channel_of(WORLD.client()), parts_of(DATA))
    for points, part in ((known.fit, DATA.train), (known.choose, DATA.auxiliary), (known.read, DATA.victims)):
        torch.testing.assert_close(points.z, part.images().flatten(1) @ WORLD.matrix.T.float())
        assert torch.equal(points.classes, part.labels)


def test_some_images_are_different_ones_and_the_same_for_a_seed():
    first, again = (some(DATA.victims, 10, torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(first.pixels, again.pixels)
    assert len(set(first.fingerprints())) == 10
    assert set(first.fingerprints()) <= set(DATA.victims.fingerprints())
    assert len(some(DATA.victims, 99, torch.Generator())) == 30
