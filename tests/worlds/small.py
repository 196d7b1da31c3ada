"""A tiny image set and a tiny cut network: enough to train in a second, with nothing random left open."""

import torch
from torch import nn

from splitveil.data import ImageSet, Part, Role
from splitveil.mechanisms import Gaussian, Mechanism
from splitveil.split import Split, cut


def small_images(*, n_train: int = 96, n_other: int = 32, n_classes: int = 3, size: int = 8, seed: int = 0) -> ImageSet:
    """Gray images with a bright column whose place is the class, plus noise: easy to learn, all different."""
    generator = torch.Generator().manual_seed(seed)

    def part(n: int) -> Part:
        labels = torch.arange(n) % n_classes
        pixels = torch.randint(0, 120, (n, 1, size, size), generator=generator)
        pixels[torch.arange(n), :, :, labels * size // n_classes] += 120
        return Part(pixels.to(torch.uint8), labels)

    return ImageSet("small", n_classes, part(n_train), part(n_other), part(n_other), part(n_other))


def row_images(*, n_train: int = 96, n_other: int = 32, n_classes: int = 3, size: int = 16) -> ImageSet:
    """The same with bright rows: an image and its mirror image are of one class."""
    data = small_images(n_train=n_train, n_other=n_other, n_classes=n_classes, size=size)
    return data.with_parts({role: Part(part.pixels.mT.contiguous(), part.labels) for role, part in _parts(data)})


def _parts(data: ImageSet) -> list[tuple[Role, Part]]:
    return [(role, data.part(role)) for role in Role]


def small_split(
    *, mechanism: Mechanism | None = None, batch_norm: bool = True, n_classes: int = 3, size: int = 8, seed: int = 0
) -> Split:
    """A convolution on the client, a linear layer on the server."""
    torch.manual_seed(seed)
    norm = nn.BatchNorm2d(4) if batch_norm else nn.Identity()
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        norm,
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * (size // 2) ** 2, n_classes),
    )
    return cut(model, after="3", mechanism=mechanism or Gaussian(std=0.1))
