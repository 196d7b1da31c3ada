"""Small networks of every style a user might bring to be cut."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from splitveil.split import Split

IMAGES = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def conv(n_in: int, n_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(n_in, n_out, 3, padding=1), nn.BatchNorm2d(n_out), nn.ReLU(inplace=True))


class Written(nn.Module):
    """A forward in plain Python: functional dropout that follows the mode, a view by the batch size."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(conv(3, 6), nn.MaxPool2d(2), conv(6, 5))
        self.dropped = nn.Dropout(0.3)
        self.classifier = nn.Linear(5 * 16, 10)

    def forward(self, x: Tensor, scale: float | None = None) -> Tensor:
        n = x.shape[0]
        x = self.features(x if scale is None else x * scale)
        x = F.dropout(self.dropped(x), 0.4, training=self.training)
        return self.classifier(x.view(n, -1))


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv(width, width), conv(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(self.conv1(x)) + x


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 6)
        self.stages = nn.Sequential(Residual(6), Residual(6))
        self.fc = nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.stages(self.stem(x)).mean((2, 3)))


class Tokens(nn.Module):
    """Parameters, buffers and constants read in forward, blocks in a list, a batch size used late."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 12, 4, stride=4)
        self.place = nn.Parameter(torch.randn(1, 4, 12))
        self.register_buffer("shift", torch.randn(12))
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(12, 2, 24, batch_first=True) for _ in range(3)])
        self.last = nn.Parameter(torch.randn(1, 1, 12))
        self.head = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x).flatten(2).transpose(1, 2) + self.place + (self.shift + 1)
        for block in self.blocks:
            h = block(h)
        h = torch.cat([h, self.last.expand(x.size(0), -1, -1) * torch.arange(12)], dim=1)
        return self.head(h.mean(1))


class Branching(nn.Module):
    """Control flow that depends on data: beyond tracing, but only inside a submodule."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x


def nested() -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(conv(3, 6), nn.MaxPool2d(2), Branching(), conv(6, 4)),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(64, 10),
    )


class Answer(NamedTuple):
    """What library models return in place of a tensor."""

    logits: Tensor
    hidden: None = None


class Asking(nn.Module):
    """As library models are written: optional arguments, questions about dtypes, an answer with fields."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = conv(3, 6)
        self.layers = nn.ModuleList([Residual(6), Residual(6)])
        self.classifier = nn.Linear(6, 10)

    def forward(self, pixels: Tensor | None = None, mask: Tensor | None = None, **more: object) -> Answer:
        if pixels is None:
            raise ValueError("pixels are missing")
        if pixels.dtype != self.classifier.weight.dtype:
            pixels = pixels.to(self.classifier.weight.dtype)
        if pixels.dtype == torch.float16:
            pixels = pixels * 0
        h = self.embed(pixels)
        for layer in self.layers:
            h = layer(h) if mask is None else layer(h) * mask
        return Answer(self.classifier(h.mean((2, 3))))


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    """The network with the same weights every time."""
    torch.manual_seed(0)
    return build()


def through(split: Split, x: Tensor) -> Tensor:
    """Encoder, then head, without a mechanism between them."""
    return split.server.head(split.client.encoder(x))
