"""Groups of a Gaussian mixture that is refitted by EM.

    r_mk ∝ π_ck N(z_m; μ_ck, v_ck + σ²)          EM over the reservoir, with noise added, variances at least σ²

The mixture is fitted to noisy features, as everything that is compared with what is sent must be; its own v is what
remains after σ² is taken off. Until the first refit a class is one group.
"""

from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from splitveil.check import at_least
from splitveil.mixtures import Mixture as Density
from splitveil.mixtures import fit_mixture, log_joint
from splitveil.mixtures.gaussian import Covariance
from splitveil.regularizers.entropy.groupings.base import Groups, Remembering, Rule, Space, soft
from splitveil.regularizers.entropy.groupings.plain import whole
from splitveil.regularizers.entropy.members import Members


@final
class Mixture(Remembering):
    """Posterior under the class's remembered mixture of `n_groups` Gaussians."""

    default_rule: ClassVar[Rule] = "none"  # EM at the end of an epoch is the likelihood rule
    log_weight: Tensor
    mean: Tensor
    var: Tensor

    def __init__(
        self,
        *,
        n_groups: int = 5,
        covariance: Covariance = "diagonal",
        center: Literal["remembered", "batch"] = "remembered",
    ) -> None:
        super().__init__()
        self.n_groups = int(at_least("n_groups", n_groups, 1))
        self.covariance, self.about = covariance, center

    def build(self, space: Space) -> None:
        shape = (space.n_classes, self.n_groups, space.dim)
        more = () if self.covariance == "diagonal" else (space.dim,)
        self.register_buffer("log_weight", space.like.new_zeros(shape[:2]))
        self.register_buffer("mean", space.like.new_zeros(shape))
        self.register_buffer("var", space.like.new_zeros(*shape, *more))  # with σ² in it
        super().build(space)

    def forward(self, members: Members, draw: Tensor | None) -> Groups:
        if not self._is_ready:
            return whole(members)
        label = members.label.index_select(0, members.row)
        r = log_joint(members.z, label, Density(self.log_weight, self.mean, self.var)).softmax(-1)
        center = self.mean.index_select(0, members.label) if self.about == "remembered" else None
        return Groups(r, soft(r, members), self.n_groups, center=center)

    def refit(
        self,
        points: Float[Tensor, "member dim"],
        labels: Int[Tensor, "member"],
        *,
        noise_var: float,
        generator: torch.Generator,
    ) -> None:
        noise = torch.randn(points.shape, generator=generator, device=generator.device).to(points)
        start = Density(self.log_weight, self.mean, self.var) if self._is_ready else None
        found = fit_mixture(
            points + noise_var**0.5 * noise,
            labels,
            n_classes=len(self.mean),
            n_groups=self.n_groups,
            generator=generator,
            start=start,
            floor=noise_var,
            covariance=self.covariance,
        ).mixture
        held = torch.bincount(labels, minlength=len(self.mean)) > 0
        for own, new in ((self.log_weight, found.log_weight), (self.mean, found.mean), (self.var, found.var)):
            common = new[held].mean(0)
            own.copy_(torch.where(held.view(-1, *[1] * (own.ndim - 1)), new, own if self._is_ready else common))
        self._count_refit()
