"""Samples are the best, the median and the worst, and the grid shows them in that order."""

import numpy as np
import torch
from PIL import Image

from splitveil.evaluation.samples import GAP, ZOOM, Samples, choose, grid, save_grid
from splitveil.randomness import stream


def test_best_median_and_worst_are_chosen():
    mse = torch.rand(101, generator=stream(0, "mse"))
    index = choose(mse)
    ordered = mse.sort().values
    assert torch.equal(mse[index[:4]], ordered[:4])
    assert torch.equal(mse[index[8:]], ordered[-4:])
    assert ordered[50] in mse[index[4:8]]


def test_few_victims_are_enough():
    assert choose(torch.tensor([0.2, 0.1, 0.3])) == [1, 0, 2]
    assert set(choose(torch.tensor([0.2]))) == {0}


def test_the_grid_shows_originals_above_reconstructions(tmp_path):
    x = torch.randint(0, 200, (12, 3, 8, 8), generator=stream(0, "x"), dtype=torch.uint8)
    samples = Samples(tuple(range(12)), (0.0,) * 12, x, 55 + x)
    sheet = grid(samples)
    assert sheet.shape == (16 + GAP, 12 * 8 + (9 + 2 * 3) * GAP, 3)
    np.testing.assert_array_equal(sheet[:8, :8], x[0].permute(1, 2, 0).numpy())
    np.testing.assert_array_equal(sheet[8 + GAP :, :8], 55 + x[0].permute(1, 2, 0).numpy())
    np.testing.assert_array_equal(sheet[:8, -8:], x[11].permute(1, 2, 0).numpy())
    save_grid(samples, tmp_path / "grid.png")
    with Image.open(tmp_path / "grid.png") as picture:
        np.testing.assert_array_equal(np.asarray(picture)[::ZOOM, ::ZOOM], sheet)


def test_gray_images_make_a_gray_picture(tmp_path):
    x = torch.zeros(3, 1, 8, 8, dtype=torch.uint8)
    save_grid(Samples((0, 1, 2), (0.0,) * 3, x, x), tmp_path / "grid.png")
    with Image.open(tmp_path / "grid.png") as picture:
        assert picture.mode == "L"
