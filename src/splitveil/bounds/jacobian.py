"""How fast features move with pixels: products with J = ∂c/∂x, one backward pass each, and no J in memory.

v random signs:  E v vᵀ = I   ⇒   E ‖Jᵀv‖² = ‖J‖_F²,   E Jᵀv vᵀJ = JᵀJ             (Hutchinson)
exact:           v = √D e_1 … √D e_D, whose mean of v vᵀ is I too
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.bounds.channel import Channel
from splitveil.bounds.smoothing import smoothed
from splitveil.check import UsageError, at_least, positive
from splitveil.data import Part
from splitveil.randomness import NoiseSource, SeededSource
from splitveil.types import Images

BATCH = 128  # images in one backward pass
NO_GRADIENT = "van Trees needs gradients from features to pixels, and this encoder cuts them off"

Pullbacks = Float[Tensor, "direction image pixel"]


@dataclass(frozen=True)
class Probing:
    """How Jacobians are looked at."""

    images: int = 512  # to read on, and as many to choose W
    directions: int | None = 4  # random ones an image; None: all of them, exactly
    width: float | None = None  # of the cos² noise that is added to images first; None: none
    seed: int = 0

    def __post_init__(self) -> None:
        at_least("images", self.images, 1)
        if self.width is not None:
            positive("width", self.width)
        if self.directions is not None:
            at_least("directions", self.directions, 1)


def pullbacks(channel: Channel, part: Part, probing: Probing, *key: str) -> Pullbacks:
    """Jᵀv of every image of a part, at x or at x + u, in the part's order.

    Guarantees: the mean over directions of ‖Jᵀv‖² is ‖J‖_F² in expectation, and exactly so without random directions.
    """
    source = SeededSource(probing.seed, "bounds", *key)
    found = []
    for start in range(0, len(part), BATCH):
        x = part.images(slice(start, start + BATCH))
        x = x if probing.width is None else smoothed(x, probing.width, source)
        found.append(_pull(channel, x, probing.directions, source))
    return torch.cat(found, dim=1)


def has_gradient(channel: Channel, part: Part) -> bool:
    """Whether gradients reach the pixels at all."""
    with torch.enable_grad():
        return channel.features(part.images(slice(1)).requires_grad_()).requires_grad


def _pull(channel: Channel, x: Images, directions: int | None, source: NoiseSource) -> Pullbacks:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        z = channel.features(x)
        if not z.requires_grad:
            raise UsageError(NO_GRADIENT)
        products = [
            torch.autograd.grad(z, x, v, retain_graph=True, materialize_grads=True)[0].flatten(1)
            for v in _directions(z, directions, source)
        ]
    return torch.stack(products)


def _directions(z: Float[Tensor, "image dim"], count: int | None, source: NoiseSource) -> list[Tensor]:
    if count is None:
        dim = z.shape[1]
        return [row.expand_as(z) for row in dim**0.5 * torch.eye(dim, dtype=z.dtype, device=z.device)]
    return [2.0 * (source.uniform(z.shape, device=z.device) < 0.5).to(z.dtype) - 1.0 for _ in range(count)]
