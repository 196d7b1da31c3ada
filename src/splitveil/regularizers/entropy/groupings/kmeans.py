"""K-means groups about remembered centers.

    k(m) = argmin_k ‖z_m − center_ck‖²          spread about the remembered center, or about the batch's own mean

Centers, weights and variances come from the last refit over the reservoir; until the first one a class is one group
(or nothing is charged, `until_ready="silent"`). A class the reservoir never held shares the mean of all centers:
spread about a wrong center only overstates it. An empty group contributes nothing and its weight returns to the others.

Source: the conditional-entropy code of Xia et al., CVPR 2025, with the index of the class put right.
"""

from functools import partial
from typing import Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from splitveil.check import at_least
from splitveil.mixtures import Clusters, kmeans
from splitveil.regularizers.entropy.groupings.base import Blend, Groups, Remembering, Space
from splitveil.regularizers.entropy.groupings.plain import whole
from splitveil.regularizers.entropy.members import Members, total

TRUST = 10.0  # published: ℓ = min(10 · n_j / (π_j · N / C), 0.99)
MOST_TRUST = 0.99


@final
class KMeans(Remembering):
    """Nearest remembered center; `n_groups` a class."""

    center: Tensor
    weight: Tensor
    var: Tensor

    def __init__(
        self,
        *,
        n_groups: int = 5,
        center: Literal["remembered", "batch"] = "remembered",
        weights: Literal["batch", "remembered"] = "batch",
        blend: bool = False,
        until_ready: Literal["plain", "silent"] = "plain",
        widest: float | None = None,
    ) -> None:
        super().__init__()
        self.n_groups = int(at_least("n_groups", n_groups, 1))
        self.about, self.weights, self.blend, self.until_ready = center, weights, blend, until_ready
        self.widest = None if widest is None else at_least("widest", widest, 1.0)

    def build(self, space: Space) -> None:
        shape = (space.n_classes, self.n_groups)
        self.register_buffer("center", space.like.new_zeros(*shape, space.dim))
        self.register_buffer("weight", space.like.new_zeros(shape))
        self.register_buffer("var", space.like.new_zeros(shape))
        super().build(space)

    def forward(self, members: Members, draw: Tensor | None) -> Groups:
        if not self._is_ready:
            groups = whole(members)
            return groups if self.until_ready == "plain" else _silent(groups, members)
        center = self.center.index_select(0, members.label)
        own = center.index_select(0, members.row)
        score = torch.baddbmm(own.square().sum(-1, keepdim=True), own, members.z.detach().unsqueeze(-1), alpha=-2)
        index = members.row.unsqueeze(1) * self.n_groups + score[..., 0].argmin(1, keepdim=True)
        return Groups(
            torch.ones_like(members.z[:, :1]),
            index,
            self.n_groups,
            center=center if self.about == "remembered" else None,
            prior=self.weight.index_select(0, members.label) if self.weights == "remembered" else None,
            blend=self._blend(members, index) if self.blend else None,
        )

    def _blend(self, members: Members, index: Tensor) -> Blend:
        weight = self.weight.index_select(0, members.label)
        n = total(torch.ones_like(members.z[:, 0]), index[:, 0], weight.numel()).view_as(weight)
        expected = weight * len(members.z) / len(self.center)
        trust = (TRUST * n / expected.clamp_min(1e-12)).clamp_max(MOST_TRUST)
        return Blend(self.var.index_select(0, members.label), trust)

    def refit(
        self,
        points: Float[Tensor, "member dim"],
        labels: Int[Tensor, "member"],
        *,
        noise_var: float,
        generator: torch.Generator,
    ) -> None:
        self.remember(self.cluster(points, labels, generator))

    def cluster(
        self,
        points: Float[Tensor, "member dim"],
        labels: Int[Tensor, "member"],
        generator: torch.Generator,
        *,
        seed_weight: Float[Tensor, "member"] | None = None,
        afresh: bool = False,
    ) -> Clusters:
        """Cluster from the remembered centers, or afresh.

        A class with a group wider than `widest` × its mean is also seeded anew, and keeps the better of the two.
        """
        fit = partial(kmeans, points, labels, n_classes=len(self.center), n_groups=self.n_groups, generator=generator)
        found = fit(start=self.center if self._is_ready and not afresh else None, seed_weight=seed_weight)
        if self.widest is None:
            return found
        wide = (found.var > self.widest * (found.weight * found.var).sum(-1, keepdim=True)).any(-1)
        if not bool(wide.any()):
            return found
        fresh = fit(seed_weight=seed_weight)
        better = (wide & (fresh.inertia < found.inertia)).view(-1, 1, 1)
        return fit(start=torch.where(better, fresh.center, found.center))

    def remember(self, found: Clusters) -> None:
        """Keep these clusters."""
        held = found.weight.sum(-1) > 0
        common = found.center[held].mean((0, 1))
        self.center.copy_(torch.where(held.view(-1, 1, 1), found.center, common))
        self.weight.copy_(torch.where(held.view(-1, 1), found.weight, 1 / self.n_groups))
        self.var.copy_(found.var)
        self._count_refit()


def _silent(groups: Groups, members: Members) -> Groups:
    """The whole class, weighing nothing."""
    return Groups(groups.weight, groups.index, 1, prior=torch.zeros_like(members.count).unsqueeze(1))
