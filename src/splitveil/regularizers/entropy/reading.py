"""One pass of the pipeline: moments → gates → hinge → weights over groups and classes."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from splitveil.regularizers.entropy.gates import Gates, Opened
from splitveil.regularizers.entropy.groupings.base import Groups
from splitveil.regularizers.entropy.hinge import Hinge, Information
from splitveil.regularizers.entropy.information import membership_nats
from splitveil.regularizers.entropy.members import Members
from splitveil.regularizers.entropy.moments import Moments, moments
from splitveil.regularizers.entropy.settings import Charging


@dataclass(frozen=True)
class Reading:
    """What the pipeline made of some members and their groups."""

    members: Members
    groups: Groups
    moments: Moments
    opened: Opened
    tau: Tensor | float
    account: str
    class_weight: Float[Tensor, "row"]
    value: Float[Tensor, "row"]  # charged to each class, hinged and gated

    @property
    def penalty(self) -> Float[Tensor, ""]:
        """The weighted sum over classes."""
        return (self.class_weight * self.value).sum()


def read(
    members: Members, groups: Groups, *, gates: Gates, hinge: Hinge, tau: Tensor | float, charging: Charging
) -> Reading:
    """Run the pipeline; differentiable in the members' z and in the memberships."""
    found = moments(
        members.z,
        groups.weight,
        groups.index,
        n_rows=members.n_rows,
        n_groups=groups.n_groups,
        center=groups.center,
    )
    opened: Opened = gates(members, found, groups.prior)
    value = _value(groups, _blended(found, groups), opened, hinge, noise_var=members.noise_var, tau=tau)
    if charging.account == "bound" and isinstance(hinge, Information):
        value = value + membership_nats(members, groups, found) / members.z.shape[1]
    if opened.share is not None:
        value = value * opened.share
    weight = _class_weight(members, charging)
    return Reading(members, groups, found, opened, tau, charging.account, weight, value)


def _value(
    groups: Groups, var: Tensor, opened: Opened, hinge: Hinge, *, noise_var: float, tau: Tensor | float
) -> Tensor:
    """The charge of every class: over its groups the widest, the weighted mean, or that of the mean variance."""
    if hinge.pool == "class" and groups.kind == "partition":
        gated = var if opened.dim is None else opened.dim * var
        return hinge.charge((opened.weight.unsqueeze(-1) * gated).sum(1), noise_var=noise_var, tau=tau)
    each = hinge.charge(var, noise_var=noise_var, tau=tau, gate=opened.dim)
    return each.amax(-1) if groups.kind == "weighting" else (opened.weight * each).sum(-1)


def _blended(found: Moments, groups: Groups) -> Tensor:
    if groups.blend is None:
        return found.var
    trust = groups.blend.trust.unsqueeze(-1)
    return trust * found.var + (1 - trust) * groups.blend.var.unsqueeze(-1)


def _class_weight(members: Members, charging: Charging) -> Tensor:
    if charging.class_weight == "share":
        return members.share * members.is_charged
    there = members.is_charged
    return there / there.sum().clamp_min(1)
