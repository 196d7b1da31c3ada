"""Pixel scores against scikit-image and closed forms."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.metrics import mean_squared_error, peak_signal_noise_ratio

from splitveil.check import UsageError
from splitveil.metrics import leak, mse, psnr
from splitveil.randomness import stream


@pytest.fixture
def images() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(5, 3, 17, 23, generator=stream(0, "x"))
    return x, (x + 0.2 * torch.randn(x.shape, generator=stream(0, "noise"))).clamp(0, 1)


def test_mse_equals_scikit_image(images):
    x, x_hat = images
    wanted = [mean_squared_error(a.numpy(), b.numpy()) for a, b in zip(x, x_hat, strict=True)]
    np.testing.assert_allclose(mse(x, x_hat).numpy(), wanted, rtol=1e-6)


def test_psnr_equals_scikit_image(images):
    x, x_hat = images
    wanted = [peak_signal_noise_ratio(a.numpy(), b.numpy(), data_range=1.0) for a, b in zip(x, x_hat, strict=True)]
    np.testing.assert_allclose(psnr(x, x_hat).numpy(), wanted, rtol=1e-6)


def test_psnr_of_an_exact_reconstruction_is_finite(images):
    x, _ = images
    np.testing.assert_allclose(psnr(x, x).numpy(), 100.0)


@settings(max_examples=25, deadline=None)
@given(st.floats(1e-4, 1.0), st.floats(0.0, 2.0))
def test_leak_is_linear_in_the_error(prior: float, share: float):
    assert leak(share * prior, prior) == pytest.approx(1 - share, abs=1e-9)


def test_leak_of_the_mean_image_is_zero(images):
    x, _ = images
    errors = mse(x, x.mean(0, keepdim=True).expand_as(x))
    assert leak(errors.mean(), errors.mean().item()) == pytest.approx(0.0, abs=1e-6)


def test_leak_refuses_a_prior_without_error():
    with pytest.raises(UsageError, match="mse_prior must be > 0"):
        leak(0.1, 0.0)
