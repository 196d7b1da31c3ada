"""A small diffusion model guided by private examples through differentially private cross-attention.

    x_σ = x + σ·noise        best denoiser of unit vectors x_i:  D(x_σ) = Σ_i softmax_i(⟨x_σ, x_i⟩ / σ²) x_i

That denoiser is cross-attention over the examples at inverse temperature 1/σ². The private examples (20,000 points on
a circle, in three groups) are released once; sampling then follows the probability flow dx/dσ = (x − D(x)) / σ from
noise to data, asking the memory at every step with another temperature. The samples' groups come out in the private
proportions; no example can be told from them.
"""

import math
from itertools import pairwise

import torch

from splitveil.private_attention import Bounds, NystromFeatures, PrivacySpec, PrivateKV

GROUPS, SHARES = (0.3, 2.2, 4.4), (0.6, 0.3, 0.1)
SIGMAS = torch.linspace(2.5, 0.45, 25).tolist()
BETA = 1 / SIGMAS[-1] ** 2  # the sharpest temperature that will be asked


def circle(angles: torch.Tensor) -> torch.Tensor:
    return torch.stack([angles.cos(), angles.sin()], dim=1).double()


def examples(n: int) -> torch.Tensor:
    group = torch.multinomial(torch.tensor(SHARES), n, replacement=True)
    return circle(torch.tensor(GROUPS)[group] + 0.15 * torch.randn(n))


def release(points: torch.Tensor, epsilon: float) -> PrivateKV:
    landmarks = circle(torch.linspace(0, 2 * math.pi, 65)[:-1])  # public: the circle itself
    bounds = Bounds(key_norm=1.0, query_norm=1.8, value_norm=1.0)
    builder = PrivateKV.builder(PrivacySpec(epsilon, 1e-6), bounds, NystromFeatures(landmarks, BETA), dv=2)
    return builder.add(points, points).release()


def sample(memory: PrivateKV, n: int) -> torch.Tensor:
    x = SIGMAS[0] * torch.randn(n, 2, dtype=torch.float64)
    for sigma, lower in pairwise(SIGMAS):
        denoised = memory.attend(x / (sigma**2 * BETA)).output  # ⟨x, x_i⟩ / σ² = β ⟨x / (σ²β), x_i⟩
        x = x + (lower - sigma) * (x - denoised) / sigma
    return memory.attend(x / (SIGMAS[-1] ** 2 * BETA)).output


def shares(points: torch.Tensor) -> torch.Tensor:
    """Which share of the points lies nearest each group."""
    nearest = (points @ circle(torch.tensor(GROUPS)).T).argmax(1)
    return torch.bincount(nearest, minlength=len(GROUPS)) / len(points)


def main(n: int = 20_000, epsilon: float = 1.0) -> dict[str, list[float]]:
    torch.manual_seed(0)
    private = examples(n)
    memory = release(private, epsilon)
    drawn = sample(memory, 2000)
    return {"private": shares(private).tolist(), "sampled": shares(drawn).tolist()}


if __name__ == "__main__":
    print(main())
