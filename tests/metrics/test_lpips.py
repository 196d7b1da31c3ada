"""LPIPS against the check values that came with its weights (computed with the upstream network)."""

import pytest
import torch

from splitveil.check import UsageError
from splitveil.metrics import is_upsampled, lpips
from splitveil.randomness import stream

# side: (lpips(a, a flipped left-right), lpips(a, 0.9 a + 0.05)) of the image `pattern`, without enlarging
CHECKED = {32: (0.1667, 0.0004), 64: (0.4948, 0.0017), 224: (0.5396, 0.0079)}


def pattern(side: int) -> torch.Tensor:
    i = torch.arange(side, dtype=torch.float32)
    down, along = (i / (side - 1))[:, None].expand(side, side), (i / (side - 1))[None].expand(side, side)
    return torch.stack([down, along, ((i[:, None] + i[None]) % 8) / 7])[None]


@pytest.mark.parametrize("side", CHECKED)
def test_lpips_gives_the_check_values(side):
    a = pattern(side)
    flipped, faded = CHECKED[side]
    assert lpips(a, a.flip(-1), upsample=False).item() == pytest.approx(flipped, abs=1e-4)
    assert lpips(a, 0.9 * a + 0.05, upsample=False).item() == pytest.approx(faded, abs=1e-4)


def test_small_images_are_compared_at_64_pixels():
    a = pattern(32)
    larger = torch.nn.functional.interpolate(a, size=(64, 64), mode="bilinear", align_corners=False)
    assert is_upsampled((3, 32, 32))
    assert not is_upsampled((3, 64, 64))
    torch.testing.assert_close(lpips(a, a.flip(-1)), lpips(larger, larger.flip(-1)))


def test_gray_images_count_as_three_equal_channels():
    x = torch.rand(2, 1, 28, 28, generator=stream(0, "x"))
    y = torch.rand(2, 1, 28, 28, generator=stream(0, "y"))
    torch.testing.assert_close(lpips(x, y), lpips(x.expand(-1, 3, -1, -1), y.expand(-1, 3, -1, -1)))


def test_lpips_is_symmetric_and_zero_on_equal_images():
    x = torch.rand(2, 3, 20, 40, generator=stream(1, "x"))
    y = torch.rand(2, 3, 20, 40, generator=stream(1, "y"))
    torch.testing.assert_close(lpips(x, y), lpips(y, x))
    torch.testing.assert_close(lpips(x, x), torch.zeros(2))


def test_its_gradient_is_finite_on_a_black_image():
    x = torch.zeros(1, 3, 32, 32, requires_grad=True)
    lpips(x, pattern(32)).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert x.grad.abs().sum() > 0


def test_two_channels_are_refused():
    with pytest.raises(UsageError, match="1 or 3 channels"):
        lpips(torch.zeros(1, 2, 64, 64), torch.zeros(1, 2, 64, 64))
