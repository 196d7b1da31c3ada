"""A world whose best attack is known in closed form.

    x ~ N(m, S),   z = A x,   z_sent_t = z + σ n_t,   t = 1 … T
    posterior mean:   m + S Aᵀ (A S Aᵀ + σ²/T I)⁻¹ (z̄ − A m)
    optimal MSE:      tr[S − S Aᵀ (A S Aᵀ + σ²/T I)⁻¹ A S] / d

Pixels are stored as uint8, as everywhere: rounding adds about 1.3e-6 to x's variance, a thousandth of the MSEs here,
and m and S keep x inside [0, 1] but for one pixel in 10⁵.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from splitveil.attacks import Seen
from splitveil.data import ImageSet, Part
from splitveil.mechanisms import Gaussian, Identity
from splitveil.randomness import stream
from splitveil.split import Client


class Matrix(nn.Module):
    """z = A x, with x flattened."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.register_buffer("matrix", matrix.float())

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.matrix.T


@dataclass(frozen=True)
class LinearGaussian:
    """m, S, A and σ, in float64."""

    mean: Tensor
    covariance: Tensor
    matrix: Tensor
    noise_std: float
    image_shape: tuple[int, int, int]

    def part(self, n: int, seed: int, *key: str) -> Part:
        root = torch.linalg.cholesky(self.covariance)
        normal = torch.randn(n, len(self.mean), generator=stream(seed, "world", *key), dtype=torch.float64)
        pixels = (255 * (self.mean + normal @ root.T)).round().clamp(0, 255).to(torch.uint8)
        return Part(pixels.reshape(n, *self.image_shape), torch.arange(n) % 2)

    def images(self, *, n: int = 4000, n_victims: int = 1000, seed: int = 0) -> ImageSet:
        sizes = {"train": n, "auxiliary": n, "selection": 1000, "victims": n_victims}
        parts = {role: self.part(size, seed, role) for role, size in sizes.items()}
        return ImageSet(name="linear-gaussian", n_classes=2, **parts)

    def client(self) -> Client:
        return Client(Matrix(self.matrix), Gaussian(std=self.noise_std) if self.noise_std else Identity())

    def gain(self, releases: int = 1) -> Tensor:
        """S Aᵀ (A S Aᵀ + σ²/T I)⁻¹."""
        s, a = self.covariance, self.matrix
        heard = a @ s @ a.T + self.noise_std**2 / releases * torch.eye(len(a), dtype=a.dtype)
        return torch.linalg.solve(heard, a @ s).T

    def optimal_mse(self, releases: int = 1) -> float:
        left = self.covariance - self.gain(releases) @ self.matrix @ self.covariance
        return left.trace().item() / len(self.mean)

    @property
    def prior_mse(self) -> float:
        return self.covariance.trace().item() / len(self.mean)

    def best_attack(self, seen: Seen) -> Tensor:
        """The posterior mean."""
        z = seen.z_sent.double().mean(0)
        x = self.mean + (z - self.matrix @ self.mean) @ self.gain(len(seen.z_sent)).T
        return x.float().reshape(-1, *self.image_shape).clamp(0, 1)


def white(like: Tensor) -> Tensor:
    """Images with the right mean and spread of every pixel, and nothing else right."""
    normal = torch.randn(like.shape, generator=stream(0, "white"))
    return (like.mean(0) + like.std(0) * normal).clamp(0, 1)


def world(
    *,
    side: int = 8,
    features: int = 16,
    noise_std: float = 0.1,
    length: float = 2.0,
    channels: int = 1,
    seed: int = 0,
) -> LinearGaussian:
    """Smooth random images, seen through random weights.

    The correlation of two pixels falls off over `length`; between channels half of it is left.
    """
    place = torch.cartesian_prod(torch.arange(side), torch.arange(side)).double()
    between = 0.5 + 0.5 * torch.eye(channels, dtype=torch.float64)
    n = channels * side**2
    covariance = 0.11**2 * torch.kron(between, torch.exp(-torch.cdist(place, place) / length)) + 1e-4 * torch.eye(n)
    matrix = torch.randn(features, n, generator=stream(seed, "matrix"), dtype=torch.float64) / n**0.5
    mean = torch.full((n,), 0.5, dtype=torch.float64)
    return LinearGaussian(mean, covariance, matrix, noise_std, (channels, side, side))
