"""The same scores as torchmetrics `Metric` classes, for loops that already speak torchmetrics.

    metric.update(x_hat, x) … metric.compute()          the mean over images of the function's score

Arguments come in torchmetrics' order (prediction first), unlike the functions, which say (x, x_hat).
"""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from splitveil.metrics import pixel
from splitveil.metrics.lpips import lpips
from splitveil.metrics.pixel import Scores
from splitveil.metrics.structural import ssim
from splitveil.types import Images


class _MeanScore(Metric):  # type: ignore[misc]  # torchmetrics is untyped here
    """Mean of one score over all images seen, summed over processes."""

    full_state_update = False
    is_differentiable = False
    total: Tensor
    count: Tensor

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    @staticmethod
    @abstractmethod
    def score(x: Images, x_hat: Images) -> Scores:
        """One score per image."""

    def update(self, x_hat: Images, x: Images) -> None:
        """Add a batch of reconstructions and their originals."""
        scores = self.score(x, x_hat)
        self.total += scores.double().sum()
        self.count += len(scores)

    def compute(self) -> Tensor:
        """Mean over the images so far."""
        return (self.total / self.count).float()


class ImageMSE(_MeanScore):
    """Mean squared error."""

    higher_is_better = False
    score = staticmethod(pixel.mse)


class ImagePSNR(_MeanScore):
    """PSNR of each image, averaged (torchmetrics' own averages errors first)."""

    higher_is_better = True
    score = staticmethod(pixel.psnr)


class ImageSSIM(_MeanScore):
    """Structural similarity."""

    higher_is_better = True
    score = staticmethod(ssim)


class ImageLPIPS(_MeanScore):
    """Learned perceptual distance; images under 64 pixels are enlarged to 64."""

    higher_is_better = False
    score = staticmethod(lpips)
