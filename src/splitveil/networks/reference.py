"""A classifier with the place where it is usually cut.

Reference classifiers are plain nn.Sequential: their blocks have names, and cutting between blocks needs no tracing.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import nn

from splitveil.check import UsageError

ImageShape = tuple[int, int, int]  # channels, height, width


@runtime_checkable
class Factory(Protocol):
    """Makes a freshly initialized classifier."""

    def __call__(self, *, n_classes: int, image_shape: ImageShape) -> nn.Sequential: ...


@dataclass(frozen=True)
class Reference:
    """Call it for a fresh network; `cut` is the default place, `cuts` are the named alternatives, shallow to deep.

    >>> from splitveil.networks import vgg11
    >>> len(vgg11(n_classes=10, image_shape=(3, 32, 32))), vgg11.cut
    (2, 'features.pool2')
    """

    factory: Factory
    cut: str
    cuts: tuple[str, ...]
    bottleneck_channels: int = 8
    least_size: int = 8  # px

    def __call__(self, *, n_classes: int, image_shape: ImageShape) -> nn.Sequential:
        """A freshly initialized classifier for images of this shape; weights come from torch's global generator."""
        if n_classes < 2:
            raise UsageError(f"a classifier needs at least 2 classes, got {n_classes}")
        if min(image_shape[1:]) < self.least_size:
            size = f"{image_shape[1]}×{image_shape[2]}"
            raise UsageError(f"this network needs images of at least {self.least_size} px, got {size}")
        return self.factory(n_classes=n_classes, image_shape=image_shape)
