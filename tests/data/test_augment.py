"""Random crop and flip: every view is a window of the padded image, drawn for each sample alone."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from splitveil.check import UsageError
from splitveil.data import Augment
from splitveil.randomness import NoiseSource, Rows, SeededSource

shapes = st.tuples(st.integers(1, 5), st.sampled_from([1, 3]), st.integers(1, 7), st.integers(1, 7))


class Fixed(NoiseSource):
    """Gives back the uniform numbers it was made with."""

    def __init__(self, uniform: Tensor) -> None:
        self._uniform = uniform

    def normal(self, shape: object, *, device: torch.device) -> Tensor:
        raise AssertionError("augmentation draws uniform numbers only")

    def uniform(self, shape: object, *, device: torch.device) -> Tensor:
        return self._uniform.to(device)


def _windows(image: Tensor, crop: int, *, flip: bool) -> list[Tensor]:
    """All views of one image (C, H, W), by slicing."""
    _, height, width = image.shape
    views = []
    for source in [image, image.flip(-1)] if flip else [image]:
        padded = functional.pad(source, (crop,) * 4)
        for dy, dx in itertools.product(range(2 * crop + 1), repeat=2):
            views.append(padded[:, dy : dy + height, dx : dx + width])
    return views


@settings(deadline=None, max_examples=60)
@given(shape=shapes, crop=st.integers(0, 3), flip=st.booleans(), seed=st.integers(0, 2**32))
def test_every_view_is_a_window_of_the_padded_image(shape: tuple[int, ...], crop: int, flip: bool, seed: int) -> None:
    images = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    views = Augment(crop=crop, flip=flip)(images, SeededSource(seed))
    assert views.shape == images.shape
    for image, view in zip(images, views, strict=True):
        assert any(torch.equal(view, window) for window in _windows(image, crop, flip=flip))


def test_all_shifts_and_both_mirrors_come_equally_often() -> None:
    image = torch.rand(1, 4, 5)
    n = 18 * 400
    views = Augment(crop=1, flip=True)(image.expand(n, 1, 4, 5), SeededSource(3))
    windows = torch.stack(_windows(image, 1, flip=True))
    hits = (views[:, None] == windows).flatten(2).all(-1).sum(0)
    assert hits.sum() == n
    chi_squared = float(((hits - 400) ** 2 / 400).sum())
    assert chi_squared < 40.8  # the 0.999 quantile with 17 degrees of freedom


def test_samples_are_drawn_independently() -> None:
    ramp = torch.arange(9.0).reshape(1, 1, 3, 3).expand(4000, 1, 3, 3)
    corner = Augment(crop=1)(ramp, SeededSource(0))[:, 0, 1, 1]  # the middle pixel tells the shift
    paired = torch.corrcoef(torch.stack([corner[::2], corner[1::2]]))[0, 1]
    assert abs(float(paired)) < 0.08
    assert len(corner.unique()) == 9


@pytest.mark.parametrize(("u", "expected"), [(0.0, 0), (1 - 2**-24, 8)])
def test_extreme_draws_stay_inside_the_padding(u: float, expected: int) -> None:
    image = torch.rand(1, 1, 6, 6)
    view = Augment(crop=4)(image, Fixed(torch.full((1, 3), u)))
    assert torch.equal(view, functional.pad(image, (4,) * 4)[..., expected : expected + 6, expected : expected + 6])


def test_rows_of_a_batch_get_the_views_they_get_in_the_whole() -> None:
    images, augment = torch.rand(10, 3, 8, 8), Augment(crop=2, flip=True)
    whole = augment(images, SeededSource(5, "augment", 7))
    half = augment(images[6:], SeededSource(5, "augment", 7, rows=Rows(6, 10)))
    assert torch.equal(half, whole[6:])


def test_no_augmentation_returns_its_input() -> None:
    images = torch.rand(2, 1, 3, 3)
    assert Augment()(images, Fixed(torch.empty(0))) is images


def test_negative_crop_is_refused() -> None:
    with pytest.raises(UsageError, match="crop must be ≥ 0, got -1"):
        Augment(crop=-1)
