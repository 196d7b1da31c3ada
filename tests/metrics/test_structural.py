"""Structural similarity against scikit-image."""

import numpy as np
import pytest
import torch
from skimage.metrics import structural_similarity

from splitveil.check import UsageError
from splitveil.metrics import has_ssim, ssim
from splitveil.randomness import stream


def reflected(image: torch.Tensor) -> np.ndarray:
    """torchmetrics reflects borders; scikit-image drops the 5 pixels whose window leaves the image."""
    return np.pad(image.double().numpy(), ((0, 0), (5, 5), (5, 5)), mode="reflect")


@pytest.mark.parametrize("shape", [(4, 3, 32, 32), (3, 1, 28, 28), (1, 3, 40, 24)])
def test_ssim_equals_scikit_image(shape):
    x = torch.rand(shape, generator=stream(1, "x"))
    x_hat = (x + 0.1 * torch.randn(shape, generator=stream(1, "noise"))).clamp(0, 1)
    wanted = [
        structural_similarity(
            reflected(a),
            reflected(b),
            channel_axis=0,
            data_range=1.0,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
        )
        for a, b in zip(x, x_hat, strict=True)
    ]
    np.testing.assert_allclose(ssim(x, x_hat).numpy(), wanted, atol=2e-5)


def test_ssim_of_equal_images_is_one():
    x = torch.rand(2, 1, 12, 12, generator=stream(2, "x"))
    torch.testing.assert_close(ssim(x, x), torch.ones(2))


def test_an_image_smaller_than_the_window_is_refused():
    assert not has_ssim((1, 10, 40))
    with pytest.raises(UsageError, match="at least 11×11"):
        ssim(torch.zeros(1, 1, 10, 40), torch.zeros(1, 1, 10, 40))
