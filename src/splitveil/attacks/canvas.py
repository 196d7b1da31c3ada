"""What an optimization moves: numbers v → an image, with a prior over them.

    pixels      x̂ = base + v, kept in [0, 1]            prior: total variation Σ √(∇_h² + ∇_v² + ε), or none
    Gaussian    x̂ = base + S^½ v                        prior: ‖v‖²/2, i.e. x̂ ~ N(base, S); S of auxiliary images
    network     x̂ = base + σ(l + net_{θ₀+v}(n) − net_{θ₀}(n)) − σ(l),  l = logit base
                                                        prior: the untrained network itself (and when one stops)

In the Gaussian's whitened coordinates every direction has the same scale, so few steps go far, and where f is linear
the minimum is the posterior mean. S is kept as U diag(λ) Uᵀ + ρ (I − UUᵀ): principal components, the rest alike.

Sources: Mahendran & Vedaldi 2015 (total variation); Ulyanov et al. 2018 (deep image prior); Tipping & Bishop 1999.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.networks.untrained import Untrained
from splitveil.randomness import stream
from splitveil.types import Images

SMOOTH = 1e-6  # ε under the root: keeps the gradient of a flat image finite
MAX_RANK = 1024  # principal components
MAX_IMAGES = 4096  # that S is estimated from
IMAGES_PER_COMPONENT = 4  # fewer make the smaller eigenvalues noise
FLOOR = 1e-6  # of a variance, in squared pixel units: a pixel that never changes may still move a little
COPIES = 8  # of v, held at once: its slope, two moments, and what they are on the way to a step
EDGE = 0.02  # a base is kept this far from 0 and 1, where a logit is infinite

Moved = Float[Tensor, "batch number"]
Energy = Float[Tensor, " batch"]


class Canvas(ABC):
    """Numbers that are moved, the image they stand for, and what a prior charges for them."""

    is_averaged = False  # whether the mean of late images is the answer, rather than the one with the lowest energy

    @property
    @abstractmethod
    def size(self) -> int:
        """Numbers per image."""

    @property
    def n_held(self) -> int:
        """Numbers held at once for one image's step, about; the client's own are beside these."""
        return COPIES * self.size

    @abstractmethod
    def paint(self, base: Images, v: Moved) -> Images:
        """The images; v = 0 gives `base`."""

    @abstractmethod
    def charge(self, x: Images, v: Moved) -> Energy:
        """−log prior of each, up to its weight."""

    def settle(self, base: Images, v: Moved) -> Moved:
        """v moved to the nearest that is allowed."""
        return v

    def noise(self, seed: int, *, device: torch.device) -> Float[Tensor, "1 number"]:
        """A random start, one for all images."""
        return torch.randn(1, self.size, generator=stream(seed, "start", device=device), device=device)


@final
@dataclass(frozen=True)
class PixelCanvas(Canvas):
    """The pixels themselves."""

    image_shape: tuple[int, int, int]
    has_variation: bool = True  # False: no prior

    @property
    def size(self) -> int:
        channels, height, width = self.image_shape
        return channels * height * width

    def paint(self, base: Images, v: Moved) -> Images:
        return base + v.reshape(-1, *self.image_shape)

    def charge(self, x: Images, v: Moved) -> Energy:
        return total_variation(x) if self.has_variation else x.new_zeros(len(x))

    def settle(self, base: Images, v: Moved) -> Moved:
        return self.paint(base, v).clamp(0, 1).sub(base).flatten(1)

    def noise(self, seed: int, *, device: torch.device) -> Float[Tensor, "1 number"]:
        return 0.1 * super().noise(seed, device=device)


@final
@dataclass(frozen=True)
class GaussianCanvas(Canvas):
    """Coordinates in which images are standard normal about their base."""

    image_shape: tuple[int, int, int]
    basis: Float[Tensor, "pixel rank"]
    std: Float[Tensor, " rank"]
    rest: float  # standard deviation across the basis; 0 where it spans everything

    @property
    def size(self) -> int:
        return len(self.std) + (self.basis.shape[0] if self.rest else 0)

    def paint(self, base: Images, v: Moved) -> Images:
        rank = len(self.std)
        moved = (v[:, :rank] * self.std) @ self.basis.T
        if self.rest:
            across = v[:, rank:]
            moved = moved + self.rest * (across - (across @ self.basis) @ self.basis.T)
        return base + moved.reshape(-1, *self.image_shape)

    def charge(self, x: Images, v: Moved) -> Energy:
        return 0.5 * v.square().sum(1)

    def whitened(self, moved: Images) -> Moved:
        """The v that moves a base so far; the shortest of them."""
        flat = moved.flatten(1)
        along = flat @ self.basis
        if not self.rest:
            return along / self.std
        return torch.cat([along / self.std, (flat - along @ self.basis.T) / self.rest], 1)


@final
@dataclass(frozen=True)
class NetworkCanvas(Canvas):
    """The weights of one small network per image, all from the same untrained ones."""

    network: Untrained
    origin: Float[Tensor, "1 number"]
    seed_map: Float[Tensor, "1 feature rows columns"]
    still: Float[Tensor, "1 channel height width"]  # what the untrained one paints

    is_averaged = True

    @property
    def size(self) -> int:
        return self.origin.shape[1]

    @property
    def n_held(self) -> int:
        return self.network.n_held + super().n_held

    def paint(self, base: Images, v: Moved) -> Images:
        logits = base.clamp(EDGE, 1 - EDGE).logit()
        moved = self.network(self.seed_map, self.origin + v) - self.still
        return base + torch.sigmoid(logits + moved) - torch.sigmoid(logits)

    def charge(self, x: Images, v: Moved) -> Energy:
        return x.new_zeros(len(x))

    def noise(self, seed: int, *, device: torch.device) -> Float[Tensor, "1 number"]:
        return 0.1 * super().noise(seed, device=device) * self.origin.abs()


def gaussian_canvas(images: Images) -> GaussianCanvas:
    """The Gaussian with the covariance of these images."""
    image_shape = (images.shape[1], images.shape[2], images.shape[3])
    flat = images[:MAX_IMAGES].flatten(1).double()
    n, pixels = flat.shape
    centered = (flat - flat.mean(0)) / max(n - 1, 1) ** 0.5
    rank = max(1, min(pixels, n // IMAGES_PER_COMPONENT, MAX_RANK))
    if pixels <= n:
        values, vectors = torch.linalg.eigh(centered.T @ centered)
        values, basis = values.flip(0), vectors.flip(1)[:, :rank]
    else:
        values, vectors = torch.linalg.eigh(centered @ centered.T)
        values = values.flip(0)
        basis = centered.T @ vectors.flip(1)[:, :rank] / values[:rank].clamp_min(FLOOR).sqrt()
    std = values[:rank].clamp_min(FLOOR).sqrt().float()
    left = values[rank:].sum().item() / max(pixels - rank, 1)
    return GaussianCanvas(image_shape, basis.float(), std, max(left, FLOOR) ** 0.5 if rank < pixels else 0.0)


def network_canvas(image_shape: tuple[int, int, int], *, width: int, seed: int, device: torch.device) -> NetworkCanvas:
    """An untrained network and the noise that it paints from, the same for every image."""
    network = Untrained(image_shape, width=width)
    rng = stream(seed, "untrained", device=device)
    origin, seed_map = network.draw(rng)[None], network.draw_input(rng)
    return NetworkCanvas(network, origin, seed_map, network(seed_map, origin))


def total_variation(x: Images) -> Energy:
    """Isotropic total variation of each image, summed over pixels and channels."""
    down = torch.nn.functional.pad(x[..., 1:, :] - x[..., :-1, :], (0, 0, 0, 1))
    right = torch.nn.functional.pad(x[..., 1:] - x[..., :-1], (0, 1))
    return (down.square() + right.square() + SMOOTH).sqrt().flatten(1).sum(1)
