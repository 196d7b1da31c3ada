"""The sources' early shutoff: when nothing is charged. Off by default, and every step it silences is counted.

    calls < silent_calls                         nothing in the first calls
    mean opening > level                         nothing while the gates of dimensions are open
    level = mean + 2 std of the openings so far  `"running"`: set by what the run shows instead of by hand

Open gates mark leaky features, so this shuts the charge off exactly where it is due: it is here to be compared with.
"""

from typing import Literal, final

import torch
from torch import Tensor, nn

from splitveil.regularizers.entropy.gates import Opened

RUNNING = 0.99  # momentum of the running statistics of the opening
WIDTH = 2.0  # standard deviations above its mean from which an opening is unusual


@final
class Shutoff(nn.Module):
    """Zeroes the penalty of a step and counts it in `n_shut`."""

    n_shut: Tensor
    running: Tensor

    def __init__(self, *, calls: int, opening: float | Literal["running"] | None) -> None:
        super().__init__()
        self.calls, self.opening = calls, opening

    @property
    def is_running(self) -> bool:
        """Whether the level follows the run."""
        return self.opening == "running"

    def build(self, *, like: Tensor) -> None:
        """Make the counter and the running statistics."""
        self.register_buffer("n_shut", torch.zeros((), dtype=torch.long, device=like.device))
        if self.is_running:
            self.register_buffer("running", like.new_zeros(3))  # weight seen, mean and mean square of the opening

    def forward(self, penalty: Tensor, opened: Opened, n_calls: Tensor) -> Tensor:
        """The penalty, or 0 while it is shut off."""
        shut: list[Tensor] = []
        if self.calls:
            shut.append(n_calls < self.calls)
        if self.opening is not None and opened.dim is not None:
            shut.append(opened.dim.detach().mean() > self.level(opened.dim))
        if not shut:
            return penalty
        is_shut = torch.stack(shut).any()
        self.n_shut += is_shut
        return torch.where(is_shut, 0.0, 1.0) * penalty

    def level(self, like: Tensor) -> Tensor:
        """The opening above which nothing is charged; infinite as long as a running one has seen nothing."""
        if isinstance(self.opening, float | int):
            return like.new_full((), float(self.opening))
        mean, square = self.running[1], self.running[2]
        level = mean + WIDTH * (square - mean.square()).clamp_min(0).sqrt()
        return torch.where(self.running[0] > 0, level, torch.inf)

    @torch.no_grad()
    def observe(self, opened: Opened) -> None:
        """Follow mean and mean square of the opening."""
        if opened.dim is None:
            return
        now = opened.dim.detach().mean()
        new = torch.stack([torch.ones_like(now), now, now.square()])
        new = torch.where(self.running[0] == 0, new, RUNNING * self.running + (1 - RUNNING) * new)
        self.running.copy_(torch.where(now.isfinite(), new, self.running))
