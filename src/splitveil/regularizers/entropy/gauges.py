"""Gauges: what a surrogate shows of how its penalty came about. Detached, never read inside a step.

S, I_r, P, L and charged are means over classes in nats; spread is one number a class (0 where absent), to be held
against threshold; slot_mass is the mean mass of the largest, second … group.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from splitveil.mixtures import leak_nats
from splitveil.regularizers.entropy.groupings.plain import whole
from splitveil.regularizers.entropy.information import density, membership_nats, spread_nats, worst_gap
from splitveil.regularizers.entropy.members import Members, total
from splitveil.regularizers.entropy.moments import Moments, moments
from splitveil.regularizers.entropy.reading import Reading

OPEN = 0.5  # a gate above this counts as open in the hard gate


@torch.no_grad()
def measure(reading: Reading, noise: Tensor, n_classes: int) -> Mapping[str, Tensor]:
    """All gauges of one step; `noise` is standard normal, for L."""
    members = reading.members
    plain = _plain(members)
    of_class = members.share * members.is_charged
    return {
        **_nats(reading, plain, noise, of_class),
        "spread": total(plain.var.mean((1, 2)) * (members.count > 0), members.label, n_classes),
        "threshold": reading.tau.clone() if isinstance(reading.tau, Tensor) else of_class.new_full((), reading.tau),
        "intra_mse": (of_class * plain.var.mean((1, 2))).sum(),
        "effective_members": (of_class * _effective(reading)).sum(),
        "slot_mass": _slot_mass(reading),
        "over_hinge": _over(reading, of_class),
        "skipped_classes": (members.count == 1).sum(),
        **_openings(reading, of_class),
    }


def _plain(members: Members) -> Moments:
    groups = whole(members)
    return moments(members.z, groups.weight, groups.index, n_rows=members.n_rows, n_groups=1)


def _nats(reading: Reading, plain: Moments, noise: Tensor, of_class: Tensor) -> dict[str, Tensor]:
    members, groups, found = reading.members, reading.groups, reading.moments
    each = spread_nats(found.var, members.noise_var)
    one = spread_nats(plain.var, members.noise_var)[:, 0]
    is_weighting = groups.kind == "weighting"
    share = found.mass / members.count.clamp_min(1).unsqueeze(-1)
    spread = each[:, 0] if is_weighting else (share * each).sum(-1)
    added = membership_nats(members, groups, found)
    q = density(members, plain if is_weighting else found)
    leak = leak_nats(members.z, members.row, q, noise, noise_var=members.noise_var)
    leak = total(leak, members.row, members.n_rows) / members.count.clamp_min(1)
    charged = each.amax(-1) if is_weighting else spread + added if reading.account == "bound" else spread
    named = {"S": spread, "I_r": added, "P": one, "L": leak, "charged": charged}
    if is_weighting:
        named |= {"gap": worst_gap(members, found)}
    return {name: (of_class * nats).sum() for name, nats in named.items()}


def _effective(reading: Reading) -> Tensor:
    """(Σ w)²/Σ w² of each group over the members of its class, weighted by the group's weight."""
    groups, found = reading.groups, reading.moments
    square = total(groups.weight.square().flatten(), groups.index.flatten(), found.mass.numel()).view_as(found.mass)
    count = reading.members.count.clamp_min(1)
    effective = found.mass.square() / square.clamp_min(1e-30) / count.unsqueeze(-1)
    return effective[:, 0] if groups.kind == "weighting" else (reading.opened.weight * effective).sum(-1)


def _slot_mass(reading: Reading) -> Tensor:
    there = (reading.members.count > 0).to(reading.opened.weight.dtype)
    ordered = reading.opened.weight.sort(-1, descending=True).values
    return (ordered * there.unsqueeze(-1)).sum(0) / there.sum().clamp_min(1)


def _over(reading: Reading, of_class: Tensor) -> Tensor:
    """Share of dimensions with more variance than τ."""
    over = (reading.moments.var > reading.tau).to(of_class.dtype).mean(-1)
    of_group = over.amax(-1) if reading.groups.kind == "weighting" else (reading.opened.weight * over).sum(-1)
    return (of_class * of_group).sum()


def _openings(reading: Reading, of_class: Tensor) -> dict[str, Tensor]:
    opened = reading.opened
    shown: dict[str, Tensor] = {}
    for name, gate in (("gate_dimension", opened.learned), ("gate_snr", opened.snr), ("gate_dims", opened.dim)):
        if gate is not None:
            weight = of_class.view(-1, 1) * opened.weight / of_class.sum().clamp_min(1e-30)
            shown[name] = (weight * gate.mean(-1)).sum()
            if name == "gate_dims":
                shown["gate_hard"] = (weight * (gate > OPEN).to(gate.dtype).mean(-1)).sum()
    if opened.share is not None:
        shown["gate_class"] = (of_class * opened.share).sum() / of_class.sum().clamp_min(1e-30)
    return shown
