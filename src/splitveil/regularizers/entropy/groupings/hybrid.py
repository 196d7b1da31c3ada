"""K-means whose seeds attention chooses.

    a seed is drawn in proportion to D² · α          α: gated pooling, fitted by ascent on the same members

The attention climbs the spread of its weighting, so it marks the members that make a class wide; a D² draw weighted by
it starts centers there, and groups that must be re-seeded go there too. Groups and charge are those of K-means.
"""

from collections.abc import Hashable
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from splitveil.regularizers.entropy.groupings.base import Grouping, Groups, Rule, Space
from splitveil.regularizers.entropy.groupings.gated_pooling import GatedPooling
from splitveil.regularizers.entropy.groupings.kmeans import KMeans
from splitveil.regularizers.entropy.members import Members


@final
class Hybrid(Grouping):
    """`clusters` seeded and re-seeded by `attention`; every refit starts afresh from new seeds."""

    default_rule: ClassVar[Rule] = "ascent"
    remembers: ClassVar[bool] = True

    def __init__(
        self,
        *,
        n_groups: int = 5,
        hidden: int | None = None,
        center: Literal["remembered", "batch"] = "remembered",
        widest: float | None = None,
    ) -> None:
        super().__init__()
        self.clusters = KMeans(n_groups=n_groups, center=center, widest=widest)
        self.attention = GatedPooling(hidden=hidden)

    def build(self, space: Space) -> None:
        self.clusters.build(space)
        self.attention.build(space)

    @property
    def phase(self) -> Hashable:
        return self.clusters.phase

    def forward(self, members: Members, draw: Tensor | None) -> Groups:
        groups: Groups = self.clusters(members, draw)
        return groups

    def learned(self, members: Members, draw: Tensor | None) -> Groups:
        return self.attention.learned(members, draw)

    @torch.no_grad()
    def refit(
        self,
        points: Float[Tensor, "member dim"],
        labels: Int[Tensor, "member"],
        *,
        noise_var: float,
        generator: torch.Generator,
    ) -> None:
        alpha = self.attention.attention(points, labels, len(self.clusters.center))
        self.clusters.remember(self.clusters.cluster(points, labels, generator, seed_weight=alpha, afresh=True))
