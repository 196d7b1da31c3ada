"""Structural similarity (Wang et al. 2004), one score per image: torchmetrics' with data_range 1.

    ssim = mean over positions of  (2 μ μ̂ + c₁)(2 cov + c₂) / ((μ² + μ̂² + c₁)(σ² + σ̂² + c₂))

with Gaussian windows of σ 1.5 (11 × 11 pixels), c₁ = 0.01², c₂ = 0.03²; borders are reflected, channels averaged.
"""

from torchmetrics.functional.image import structural_similarity_index_measure

from splitveil.check import UsageError
from splitveil.metrics.pixel import Scores
from splitveil.types import Images

WINDOW = 11  # pixels a side; a smaller image is all border


def has_ssim(image_shape: tuple[int, ...]) -> bool:
    """Whether an image of this (C, H, W) holds one full window."""
    return min(image_shape[-2:]) >= WINDOW


def ssim(x: Images, x_hat: Images) -> Scores:
    """Structural similarity of each image: 1 for equal images. Symmetric and differentiable."""
    if not has_ssim(tuple(x.shape)):
        raise UsageError(f"ssim needs images of at least {WINDOW}×{WINDOW} pixels, got {x.shape[-2]}×{x.shape[-1]}")
    scores: Scores = structural_similarity_index_measure(x_hat, x, data_range=1.0, reduction="none")
    return scores.reshape(len(x))
