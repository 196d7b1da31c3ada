"""How well an attack did: (x, x_hat) → one score per image, and intervals of their means."""

from splitveil.metrics.interval import Interval, interval
from splitveil.metrics.lpips import is_upsampled, lpips
from splitveil.metrics.pixel import Scores, leak, mse, psnr
from splitveil.metrics.stateful import ImageLPIPS, ImageMSE, ImagePSNR, ImageSSIM
from splitveil.metrics.structural import has_ssim, ssim

__all__ = [
    "ImageLPIPS",
    "ImageMSE",
    "ImagePSNR",
    "ImageSSIM",
    "Interval",
    "Scores",
    "has_ssim",
    "interval",
    "is_upsampled",
    "leak",
    "lpips",
    "mse",
    "psnr",
    "ssim",
]
