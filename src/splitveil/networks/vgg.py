"""VGG11 with batch normalization, as the split-inference literature cuts it.

    conv1 64 ▸ pool │ conv2 128 ▸ pool ║ conv3 256, conv4 256 ▸ pool │ conv5, conv6 512 ▸ pool │ conv7, conv8 512 ▸ pool

After pool2 (║) a 3×3 sigmoid bottleneck of 8 channels turns a 32×32 image into 8×8×8 features; the encoder then has
85,256 parameters. Global average pooling makes one network of all image sizes from 32 px on.

Source: Simonyan & Zisserman (2015); Li et al., "ResSFL" (CVPR 2022).
"""

from torch import nn

from splitveil.networks.initialization import initialize
from splitveil.networks.naming import named
from splitveil.networks.reference import ImageShape, Reference

WIDTHS = (64, 128, 256, 256, 512, 512, 512, 512)
POOLED = (1, 2, 4, 6, 8)  # a pooling follows these convolutions


def _vgg11(*, n_classes: int, image_shape: ImageShape) -> nn.Sequential:
    features: dict[str, nn.Module] = {}
    n_in = image_shape[0]
    for i, width in enumerate(WIDTHS, start=1):
        features[f"conv{i}"] = nn.Conv2d(n_in, width, kernel_size=3, padding=1)
        features[f"norm{i}"] = nn.BatchNorm2d(width)
        features[f"relu{i}"] = nn.ReLU()
        if i in POOLED:
            features[f"pool{i}"] = nn.MaxPool2d(2)
        n_in = width
    classifier = named(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), linear=nn.Linear(n_in, n_classes))
    return initialize(named(features=named(**features), classifier=classifier))


vgg11 = Reference(_vgg11, cut="features.pool2", cuts=tuple(f"features.pool{i}" for i in POOLED), least_size=32)
