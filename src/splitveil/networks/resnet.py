"""Residual networks for small images.

    ResNet-20:  conv 16 │ stage1 3×16 │ stage2 3×32, half size │ stage3 3×64, half size │ average ▸ linear
    ResNet-18:  conv 64 │ stage1 2×64 │ stage2 2×128 │ stage3 2×256 │ stage4 2×512, half size each │ average ▸ linear

A block is conv-norm-relu-conv-norm plus its input, then relu; where the size or width changes the input goes through a
1×1 convolution. The stem keeps the image size (no 7×7 stride 2), so 32 and 64 px images lose no detail before stage 2.

Source: He et al., "Deep Residual Learning" (CVPR 2016), §4.2 and table 1.
"""

from functools import partial

from torch import nn

from splitveil.networks.initialization import initialize
from splitveil.networks.naming import named, numbered
from splitveil.networks.reference import ImageShape, Reference
from splitveil.networks.residual import Residual


def _conv(n_in: int, n_out: int, *, size: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(n_in, n_out, kernel_size=size, stride=stride, padding=size // 2, bias=False)


def _block(n_in: int, n_out: int, *, stride: int) -> Residual:
    body = named(
        conv1=_conv(n_in, n_out, stride=stride),
        norm1=nn.BatchNorm2d(n_out),
        relu1=nn.ReLU(),
        conv2=_conv(n_out, n_out),
        norm2=nn.BatchNorm2d(n_out),
    )
    if stride == 1 and n_in == n_out:
        return Residual(body, after=nn.ReLU())
    projected = named(conv=_conv(n_in, n_out, size=1, stride=stride), norm=nn.BatchNorm2d(n_out))
    return Residual(body, shortcut=projected, after=nn.ReLU())


def _resnet(*, widths: tuple[int, ...], depth: int, n_classes: int, image_shape: ImageShape) -> nn.Sequential:
    """A stem, one stage of `depth` blocks for each width, and a linear classifier on the mean of the map."""
    n_in = widths[0]
    stem = named(conv=_conv(image_shape[0], n_in), norm=nn.BatchNorm2d(n_in), relu=nn.ReLU())
    stages: list[nn.Module] = []
    for width in widths:
        first = _block(n_in, width, stride=2 if stages else 1)
        stages.append(numbered("block", [first, *(_block(width, width, stride=1) for _ in range(depth - 1))]))
        n_in = width
    classifier = named(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), linear=nn.Linear(n_in, n_classes))
    by_name = {f"stage{i}": stage for i, stage in enumerate(stages, start=1)}
    return initialize(named(stem=stem, **by_name, classifier=classifier))


resnet20 = Reference(
    partial(_resnet, widths=(16, 32, 64), depth=3),
    cut="stage2.block1",
    cuts=("stem", "stage1", "stage2.block1", "stage2", "stage3.block1", "stage3"),
)
resnet18 = Reference(
    partial(_resnet, widths=(64, 128, 256, 512), depth=2),
    cut="stage2.block1",
    cuts=("stem", "stage1", "stage2.block1", "stage2", "stage3.block1", "stage3", "stage4"),
)
