"""Views are shifts and mirror images of their input, with reflected borders."""

import torch

from splitveil.attacks.views import view
from splitveil.randomness import SeededSource, stream


def test_every_view_is_a_reflected_shift_of_its_image_or_of_its_mirror_image():
    x = torch.rand(40, 2, 16, 24, generator=stream(0, "x"))
    seen = view(x, SeededSource(0, "views"))
    kinds = set()
    for image, found in zip(x, seen, strict=True):
        padded = {
            flip: torch.nn.functional.pad(image.flip(-1) if flip else image, (2, 2, 2, 2), mode="reflect")
            for flip in (False, True)
        }
        matches = {
            (flip, dy, dx)
            for flip, p in padded.items()
            for dy in range(5)
            for dx in range(5)
            if torch.equal(p[:, dy : dy + 16, dx : dx + 24], found)
        }
        assert len(matches) == 1
        kinds |= matches
    assert {flip for flip, _, _ in kinds} == {False, True}
    assert len({(dy, dx) for _, dy, dx in kinds}) > 10


def test_views_repeat_with_their_source():
    x = torch.rand(4, 1, 8, 8, generator=stream(0, "x"))
    assert torch.equal(view(x, SeededSource(3)), view(x, SeededSource(3)))
    assert not torch.equal(view(x, SeededSource(3)), view(x, SeededSource(4)))
