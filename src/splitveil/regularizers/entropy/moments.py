"""Spread of softly grouped members, all classes at once.

    share_mg = w_mg / Σ_m w_mg          mean_g = Σ_m share_mg z_m          var_g = Σ_m share_mg (z_m − mean_g)²

A member has `active` entries: one for a hard grouping, one a group for a soft one, so a hard grouping never touches the
groups a member is not in. Two passes, since E[z²] − mean² cancels in float32. The gradient is written out, because

    ∂var_g/∂z_m = 2 share_mg (z_m − mean_g)          ∂var_g/∂share_mg = (z_m − mean_g)²

(the terms through the mean vanish: Σ_m share_mg (z_m − mean_g) = 0; about a given center there are none).
Memory: three arrays of member × active × dim numbers, one of them kept for the gradient.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from splitveil.regularizers.entropy.members import total

TINY = 1e-30  # keeps an empty group divisible; far below any mass


@dataclass(frozen=True)
class Moments:
    """Mass, mean and variance of every group of every row. An empty group has all three 0."""

    mass: Float[Tensor, "row group"]
    mean: Float[Tensor, "row group dim"]
    var: Float[Tensor, "row group dim"]


def moments(
    z: Float[Tensor, "member dim"],
    weight: Float[Tensor, "member active"],
    index: Int[Tensor, "member active"],
    *,
    n_rows: int,
    n_groups: int,
    center: Float[Tensor, "row group dim"] | None = None,
) -> Moments:
    """Weighted mean and variance of each group; `index` is row · n_groups + group.

    Guarantees: var ≥ 0; scaling the weights of a group changes nothing but its mass; the order of members changes
    nothing; with `center`, the spread is taken about it and `mean` is that center.
    """
    n = n_rows * n_groups
    flat = index.flatten()
    mass = total(weight.flatten(), flat, n)
    share = weight * mass.clamp_min(TINY).reciprocal().index_select(0, flat).view_as(weight)
    about = None if center is None else center.flatten(0, 1)
    mean, var = _Spread.apply(z, share, flat, n, about)  # type: ignore[no-untyped-call]
    shape = (n_rows, n_groups, z.shape[1])
    return Moments(mass.view(n_rows, n_groups), mean.view(shape), var.view(shape))


class _Spread(torch.autograd.Function):
    """(z, share) → (mean, var) of every group, with the gradient of the module's docstring."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, share: Tensor, flat: Tensor, n: int, center: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        active, dim = share.shape[1], z.shape[1]
        weight = share.reshape(-1, 1)
        entries = z if active == 1 else z.unsqueeze(1).expand(-1, active, -1).reshape(-1, dim)
        mean = total(entries * weight, flat, n) if center is None else center
        gap = entries - mean.index_select(0, flat)
        var = total(gap.square().mul_(weight), flat, n)
        ctx.save_for_backward(z, weight, flat, gap)
        ctx.active = active
        ctx.moves_mean = center is None
        return (mean.clone() if center is not None else mean), var

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        z, weight, flat, gap = ctx.saved_tensors
        to_mean, to_var = grads
        through_mean = None if to_mean is None or not ctx.moves_mean else to_mean.index_select(0, flat)
        pull = None if to_var is None else gap * to_var.index_select(0, flat)
        to_z = to_share = None
        if ctx.needs_input_grad[0]:
            parts = [p for p in (None if pull is None else 2 * pull, through_mean) if p is not None]
            if parts:
                to_z = (sum(parts[1:], parts[0]) * weight).view(len(z), ctx.active, -1)
                to_z = to_z[:, 0] if ctx.active == 1 else to_z.sum(1)
        if ctx.needs_input_grad[1]:
            own = torch.zeros_like(weight)
            if pull is not None:
                own = own + (pull * gap).sum(1, keepdim=True)
            if through_mean is not None:
                own = own + (through_mean.view(len(z), ctx.active, -1) * z.unsqueeze(1)).sum(-1).view_as(own)
            to_share = own.view(len(z), ctx.active)
        return to_z, to_share, None, None, None
