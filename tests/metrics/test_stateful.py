"""The stateful classes are the functions, averaged over batches of any size."""

import pytest
import torch

from splitveil.metrics import ImageLPIPS, ImageMSE, ImagePSNR, ImageSSIM, lpips, mse, psnr, ssim
from splitveil.randomness import stream

PAIRS = [(ImageMSE, mse), (ImagePSNR, psnr), (ImageSSIM, ssim), (ImageLPIPS, lpips)]


@pytest.mark.parametrize(("metric_class", "function"), PAIRS)
def test_batches_of_any_size_give_the_mean_over_images(metric_class, function):
    x = torch.rand(5, 1, 16, 16, generator=stream(0, "x"))
    x_hat = torch.rand(5, 1, 16, 16, generator=stream(0, "x_hat"))
    metric = metric_class()
    metric.update(x_hat[:4], x[:4])
    metric.update(x_hat[4:], x[4:])
    torch.testing.assert_close(metric.compute(), function(x, x_hat).mean(), rtol=1e-5, atol=1e-6)
    metric.reset()
    metric.update(x, x)
    torch.testing.assert_close(metric.compute(), function(x, x).mean(), rtol=1e-5, atol=1e-6)
