"""MobileNetV2 for small images: a network made for phones, where the client is one.

    block(t, n):  1×1 conv to t·n_in ▸ 3×3 depthwise ▸ 1×1 conv to n       plus its input where the shape allows

Widths and depths are the original's; the stem and stage 2 keep the image size, since 32 px images have none to give
away: a 32×32 image is 16×16 after stage3 and 4×4 at the end.

Source: Sandler et al., "MobileNetV2" (CVPR 2018), table 2.
"""

from torch import nn

from splitveil.networks.initialization import initialize
from splitveil.networks.naming import named, numbered
from splitveil.networks.reference import ImageShape, Reference
from splitveil.networks.residual import Residual

STEM, LAST = 32, 1280
STAGES = (  # expansion t, width, blocks, stride of the first block
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _conv(n_in: int, n_out: int, *, size: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(n_in, n_out, kernel_size=size, stride=stride, padding=size // 2, groups=groups, bias=False)
    return named(conv=conv, norm=nn.BatchNorm2d(n_out), relu=nn.ReLU6())


def _block(n_in: int, n_out: int, *, expansion: int, stride: int) -> nn.Module:
    hidden = expansion * n_in
    body = nn.Sequential()
    if expansion > 1:
        body.add_module("expand", _conv(n_in, hidden))
    body.add_module("depthwise", _conv(hidden, hidden, size=3, stride=stride, groups=hidden))
    body.add_module("project", _conv(hidden, n_out)[:2])  # a linear bottleneck: no relu
    return Residual(body) if stride == 1 and n_in == n_out else body


def _mobilenet_v2(*, n_classes: int, image_shape: ImageShape) -> nn.Sequential:
    n_in = STEM
    stages: dict[str, nn.Module] = {}
    for i, (expansion, width, depth, stride) in enumerate(STAGES, start=1):
        first = _block(n_in, width, expansion=expansion, stride=stride)
        more = [_block(width, width, expansion=expansion, stride=1) for _ in range(depth - 1)]
        stages[f"stage{i}"] = numbered("block", [first, *more])
        n_in = width
    classifier = named(
        pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), dropout=nn.Dropout(0.2), linear=nn.Linear(LAST, n_classes)
    )
    stem = _conv(image_shape[0], STEM, size=3)
    return initialize(named(stem=stem, **stages, last=_conv(n_in, LAST), classifier=classifier))


mobilenet_v2 = Reference(
    _mobilenet_v2, cut="stage3.block1", cuts=("stem", "stage1", "stage2", "stage3.block1", "stage3", "stage4")
)
