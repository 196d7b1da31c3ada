"""What groups say about I(x; z_sent | y), in nats, class by class.

    S_c = Σ_k π_k ½ Σ_j log(1 + v_kj/σ²)        I_c = H(π) − mean_m H(r_m)        P_c = S_c of one group
    q   = Σ_k π_k N(μ_k, v_k + σ²)              L_c = mean_m [log N(z̃_m; z_m, σ²) − log q(z̃_m)],   z̃ = z + σn

    for any memberships:   L_c ≤ S_c + I_c  (in expectation over n)          S_c ≤ P_c about batch means

S alone bounds nothing. In-sample values flatter; a reported bound is L on data that fitted neither q nor the encoder.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.mixtures import Mixture
from splitveil.regularizers.entropy.groupings.base import Groups
from splitveil.regularizers.entropy.members import Members, total
from splitveil.regularizers.entropy.moments import TINY, Moments


def spread_nats(var: Float[Tensor, "*group dim"], noise_var: float) -> Float[Tensor, "*group"]:
    """½ Σ_j log(1 + v_j/σ²)."""
    return 0.5 * torch.log1p(var / noise_var).sum(-1)


def membership_nats(members: Members, groups: Groups, moments: Moments) -> Float[Tensor, "row"]:
    """I_c = H(π) − mean_m H(r_m): what knowing the group adds; 0 for one group."""
    if groups.kind == "weighting" or groups.n_groups == 1:
        return torch.zeros_like(members.count)
    weight = moments.mass / members.count.clamp_min(1).unsqueeze(-1)
    gain = -torch.xlogy(weight, weight).sum(-1)
    if groups.weight.shape[1] == 1:  # hard memberships have no entropy
        return gain
    doubt = -torch.xlogy(groups.weight, groups.weight).sum(-1)
    return gain - total(doubt, members.row, members.n_rows) / members.count.clamp_min(1)


def density(members: Members, moments: Moments) -> Mixture:
    """q of every row: the groups as a mixture, before noise is added to its variances."""
    weight = moments.mass / members.count.clamp_min(1).unsqueeze(-1)
    return Mixture(weight.clamp_min(TINY).log(), moments.mean, moments.var)


def worst_gap(members: Members, moments: Moments) -> Float[Tensor, "row"]:
    """g of each row's first group: no weighting of its members has more than S + ½g. Absent classes have 0."""
    mean, var = moments.mean[:, 0], moments.var[:, 0]
    rise = (members.z - mean.index_select(0, members.row)).square() - var.index_select(0, members.row)
    worth = (rise / (var + members.noise_var).index_select(0, members.row)).sum(-1)
    top = torch.full_like(members.count, -torch.inf).scatter_reduce_(0, members.row, worth, "amax")
    return torch.where(members.count > 0, top, 0.0)
