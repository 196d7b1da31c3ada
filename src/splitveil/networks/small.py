"""A small network that trains in seconds an epoch on two CPU cores.

    conv1 24 ▸ pool │ conv2 48 ▸ pool ║ conv3 96 ▸ pool │ linear

After pool2 (║) a 28×28 image is 7×7; with the 8-channel sigmoid bottleneck the client sends 8×7×7 numbers.
"""

from torch import nn

from splitveil.networks.initialization import initialize
from splitveil.networks.naming import named
from splitveil.networks.reference import ImageShape, Reference

WIDTHS = (24, 48, 96)


def _small_cnn(*, n_classes: int, image_shape: ImageShape) -> nn.Sequential:
    features: dict[str, nn.Module] = {}
    n_in = image_shape[0]
    for i, width in enumerate(WIDTHS, start=1):
        features[f"conv{i}"] = nn.Conv2d(n_in, width, kernel_size=3, padding=1)
        features[f"norm{i}"] = nn.BatchNorm2d(width)
        features[f"relu{i}"] = nn.ReLU()
        features[f"pool{i}"] = nn.MaxPool2d(2)
        n_in = width
    n_places = (image_shape[1] // 8) * (image_shape[2] // 8)
    classifier = named(flatten=nn.Flatten(), linear=nn.Linear(n_in * n_places, n_classes))
    return initialize(named(features=named(**features), classifier=classifier))


small_cnn = Reference(_small_cnn, cut="features.pool2", cuts=("features.pool1", "features.pool2", "features.pool3"))
