"""How the members of every class are divided.

    partition    r_mk ≥ 0, Σ_k r_mk = 1        charged S + I_r, which bounds what the class leaks
    weighting    several weightings of the whole class, charged by the widest

A grouping may remember (centers, refitted at the end of an epoch) or learn (parameters, moved by `fit`), never both
in the same tensor. It sees all classes at once as flat segments and never loops over them.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from splitveil.regularizers.entropy.members import Members

Kind = Literal["partition", "weighting"]
Rule = Literal["likelihood", "ascent", "penalty", "none"]


@dataclass(frozen=True)
class Space:
    """Where the members live: what a grouping needs to make its parameters."""

    dim: int
    n_classes: int
    seed: int
    like: Tensor  # device and dtype


@dataclass(frozen=True)
class Blend:
    """Remembered variances, mixed into the batch's: v ← ℓ·v + (1 − ℓ)·var. Only the published code does this."""

    var: Float[Tensor, "row group"]
    trust: Float[Tensor, "row group"]


@dataclass(frozen=True)
class Groups:
    """Memberships of every member in the groups of its class."""

    weight: Float[Tensor, "member active"]
    index: Int[Tensor, "member active"]  # row · n_groups + group
    n_groups: int
    kind: Kind = "partition"
    center: Float[Tensor, "row group dim"] | None = None  # spread is taken about it; None: the weighted mean
    prior: Float[Tensor, "row group"] | None = None  # remembered weights of the groups; None: their mass in the batch
    blend: Blend | None = None


class Grouping(nn.Module, ABC):
    """How the members of every class are divided. All classes at once."""

    uses_labels: ClassVar[bool] = True
    default_rule: ClassVar[Rule] = "none"
    remembers: ClassVar[bool] = False

    def build(self, space: Space) -> None:
        """Make parameters and buffers, once the space is known. Default: none."""

    def draw_shape(self, n_rows: int) -> tuple[int, ...] | None:
        """Shape of the standard normal numbers `forward` needs. Default: none."""
        return None

    @property
    def phase(self) -> Hashable:
        """What, beside tensors, decides how `forward` goes. Default: nothing."""
        return None

    @abstractmethod
    def forward(self, members: Members, draw: Tensor | None) -> Groups:
        """The groups the encoder is charged for."""

    def learned(self, members: Members, draw: Tensor | None) -> Groups:
        """The groups whose parameters `fit` moves. Default: those of `forward`."""
        return self.forward(members, draw)

    def refit(
        self,
        points: Float[Tensor, "member dim"],
        labels: Int[Tensor, "member"],
        *,
        noise_var: float,
        generator: torch.Generator,
    ) -> None:
        """Refit what is remembered from the reservoir. Default: nothing is."""


class Remembering(Grouping):
    """A grouping with a memory that is refitted at the end of an epoch; before the first time it has none."""

    remembers: ClassVar[bool] = True
    n_refits: Tensor

    def __init__(self) -> None:
        super().__init__()
        self._is_ready = False

    def build(self, space: Space) -> None:
        self.register_buffer("n_refits", torch.zeros((), dtype=torch.long, device=space.like.device))
        self._is_ready = False
        self.register_load_state_dict_post_hook(_see_refits)  # type: ignore[no-untyped-call]

    @property
    def phase(self) -> Hashable:
        return self._is_ready

    def _count_refit(self) -> None:
        self.n_refits += 1
        self._is_ready = True


def _see_refits(module: Remembering, keys: object) -> None:
    module._is_ready = bool(module.n_refits > 0)


def soft(r: Float[Tensor, "member group"], members: Members) -> Int[Tensor, "member group"]:
    """The index of every group of each member's class."""
    n = r.shape[1]
    return members.row.unsqueeze(1) * n + torch.arange(n, device=r.device)
