"""Training steps for tests of regularizers: features and labels in, everything else filled in."""

import torch
from torch import Tensor

from splitveil.regularizers.base import Progress, Step
from splitveil.types import Sent


def make_step(
    z: Tensor,
    y: Tensor,
    *,
    n_classes: int,
    noise_std: float = 0.1,
    step: int = 0,
    epoch: int = 0,
    seed: int = 0,
    accuracy: float | None = None,
) -> Step:
    """A step with these features."""
    progress = Progress(seed, epoch, step, 10, 0.1, 0.1, accuracy)
    x, logits = torch.zeros(len(z), 1, 1, 1, dtype=z.dtype), torch.zeros(len(z), n_classes, dtype=z.dtype)
    return Step(x, z, Sent(z), y, logits, noise_std, n_classes, progress)


def clouds(
    n: int, dim: int, n_classes: int, *, seed: int = 0, scale: float = 0.3, n_modes: int = 2
) -> tuple[Tensor, Tensor]:
    """Members of classes of a few modes each, float64."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(n_classes, (n,), generator=rng)
    mode = torch.randint(n_modes, (n,), generator=rng)
    center = torch.rand(n_classes, n_modes, dim, generator=rng, dtype=torch.float64)
    spread = scale * torch.rand(dim, generator=rng, dtype=torch.float64)
    return center[y, mode] + spread * torch.randn(n, dim, generator=rng, dtype=torch.float64), y
