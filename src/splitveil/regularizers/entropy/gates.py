"""Gates: what part of a group's and a class's charge counts. Every gate can only lower the charge.

    dimension    sigmoid(MLP(LN log v))                     learned; climbs what it gates, so it never learns to close
    snr          sigmoid(κ(v/(μ² + ε) − τ_snr))             opens on a high variance over squared mean (an inverse SNR)
    mass         (mass_s/M)^ρ, normalized over slots        weight of the groups; 1: their mass, the bound's own
    share        sigmoid(a(M/B − b))                        small classes count less

`share` may take a and b from running statistics of M/B instead: b = mean − std, a = 4/std.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from splitveil.check import positive
from splitveil.randomness import derive
from splitveil.regularizers.entropy.groupings.base import Space
from splitveil.regularizers.entropy.members import Members
from splitveil.regularizers.entropy.moments import TINY, Moments

LOG_FLOOR = 1e-8  # keeps log v finite for a group without spread
RUNNING = 0.99  # momentum of the running statistics of M/B


@final
@dataclass(frozen=True)
class Snr:
    """κ, τ_snr and ε of the SNR gate."""

    sharpness: float = 4.0
    level: float = 0.5
    floor: float = 1e-6


@final
@dataclass(frozen=True)
class Share:
    """a and b of the class gate; None takes them from running statistics."""

    slope: float | None = 10.0
    level: float | None = 0.05


@dataclass(frozen=True)
class Opened:
    """What the gates answered."""

    dim: Float[Tensor, "row group dim"] | None
    weight: Float[Tensor, "row group"]  # over the groups of a row, sums to 1 (0 for an absent class)
    share: Float[Tensor, "row"] | None
    learned: Float[Tensor, "row group dim"] | None
    snr: Float[Tensor, "row group dim"] | None


@final
class Gates(nn.Module):
    """Which gates there are. None by default: the bound has none."""

    running: Tensor

    def __init__(
        self, *, dimension: bool = False, snr: Snr | None = None, mass_power: float = 1.0, share: Share | None = None
    ) -> None:
        super().__init__()
        self.has_dimension, self.snr, self.share = dimension, snr, share
        self.mass_power = positive("mass_power", mass_power)

    def build(self, space: Space) -> None:
        """Make the MLP of the dimension gate (it starts half open everywhere) and the running statistics."""
        if self.has_dimension:
            width = min(512, max(64, space.dim // 4))
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(derive(space.seed, "gates"))
                last = nn.Linear(width, space.dim)
                self.mlp = nn.Sequential(nn.Linear(space.dim, width), nn.ReLU(), last)
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
            self.mlp.to(space.like)
        self.register_buffer("running", space.like.new_zeros(3))  # weight seen, mean and mean square of M/B

    def forward(self, members: Members, moments: Moments, prior: Float[Tensor, "row group"] | None) -> Opened:
        """Open the gates for these moments."""
        learned = self._dimension(moments.var) if self.has_dimension else None
        snr = None if self.snr is None else _snr(self.snr, moments)
        dim = learned if snr is None else snr if learned is None else learned * snr
        share = None if self.share is None else self._share(members.share)
        return Opened(dim, self._weight(moments.mass, prior), share, learned, snr)

    def _dimension(self, var: Tensor) -> Tensor:
        log = (var + LOG_FLOOR).log()
        opened: Tensor = self.mlp(F.layer_norm(log, log.shape[-1:])).sigmoid()
        return opened

    def _weight(self, mass: Tensor, prior: Tensor | None) -> Tensor:
        """Mass of the groups, or the remembered weights of those that are not empty, to the power ρ; they sum to 1."""
        own = mass if prior is None else prior * (mass > 0)
        if self.mass_power != 1.0:
            own = (own / own.sum(-1, keepdim=True).clamp_min(TINY)).pow(self.mass_power) * (own > 0)
        return own / own.sum(-1, keepdim=True).clamp_min(TINY)

    def _share(self, share: Tensor) -> Tensor:
        assert self.share is not None
        mean, square = self.running[1], self.running[2]
        std = (square - mean.square()).clamp_min(1e-12).sqrt()
        slope = 4 / std if self.share.slope is None else self.share.slope
        level = mean - std if self.share.level is None else self.share.level
        return torch.sigmoid(slope * (share - level))

    @torch.no_grad()
    def observe(self, members: Members) -> None:
        """Follow mean and mean square of M/B over the classes that are there."""
        if self.share is None:
            return
        there = (members.count > 0).to(members.count.dtype)
        n = there.sum().clamp_min(1)
        now = torch.stack([torch.ones_like(n), members.share.sum() / n, members.share.square().sum() / n])
        self.running.copy_(torch.where(self.running[0] == 0, now, RUNNING * self.running + (1 - RUNNING) * now))


def _snr(setting: Snr, moments: Moments) -> Tensor:
    ratio = moments.var / (moments.mean.square() + setting.floor)
    return torch.sigmoid(setting.sharpness * (ratio - setting.level))
