"""Mixture prior: a class-conditional mixture q(z | y), learned online, as the price of every member.

    penalty = mean_m [log N(z̃_m; z_m, σ²) − log q(z̃_m | y_m)] / D,   z̃ = z + σn       differentiable in z, no refit
    fit       stepwise EM: moments of the batch under r_mk ∝ π_k N(z̃_m; μ_k, v_k) join the running ones of the class

An upper bound of I(x; z_sent | y) in expectation for a q that is independent of the samples: report it held out.
A class forgets after about `window` members; a class not seen yet costs nothing and deals its first
members out to the groups by lot. Variances contain σ² and never fall below it.

Source: Cappé & Moulines, "On-line expectation–maximization algorithm for latent data models", JRSS B 2009.
"""

from collections.abc import Mapping
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.check import at_least
from splitveil.mixtures import Mixture, leak_nats, log_joint
from splitveil.regularizers.base import Step
from splitveil.regularizers.entropy.groupings.base import Space, soft
from splitveil.regularizers.entropy.members import Members, total
from splitveil.regularizers.entropy.meter import Entry, Meter
from splitveil.regularizers.entropy.metered import Draws, Metered, Purpose, Worth
from splitveil.regularizers.entropy.moments import TINY, Moments, moments
from splitveil.regularizers.entropy.parallel import World
from splitveil.regularizers.entropy.vectors import ToVectors


@final
class MixturePrior(Metered):
    """The cost of sending a member under its class's running mixture of `n_groups` Gaussians."""

    weight: Tensor
    mean: Tensor
    var: Tensor
    n_seen: Tensor

    def __init__(
        self,
        *,
        n_groups: int = 5,
        window: int = 2000,
        vectors: ToVectors | None = None,
        gauge_every: int = 16,
    ) -> None:
        super().__init__()
        self.n_groups = int(at_least("n_groups", n_groups, 1))
        self.window = at_least("window", window, 1)
        self.meter = Meter(vectors=vectors, gauge_every=gauge_every)

    def build(self, space: Space) -> None:
        self.meter.build(space)
        shape = (space.n_classes, self.n_groups, space.dim)
        self.register_buffer("weight", space.like.new_zeros(shape[:2]))
        self.register_buffer("mean", space.like.new_zeros(shape))
        self.register_buffer("var", space.like.new_ones(shape))  # with σ² in it
        self.register_buffer("n_seen", space.like.new_zeros(space.n_classes))  # members, at most `window`

    def mixture(self) -> Mixture:
        """q as it stands, with σ² in its variances."""
        return Mixture(self.weight.clamp_min(TINY).log(), self.mean, self.var)

    def shapes(self, purpose: Purpose, entry: Entry, *, has_gauges: bool) -> Mapping[str, tuple[int, ...]]:
        needed = {"noise": (entry.n_members, entry.dim)}
        return needed if purpose == "charge" else {**needed, "lots": (entry.n_members, self.n_groups)}

    def value(self, members: Members, draws: Draws, *, has_gauges: bool) -> Worth:
        label = members.label.index_select(0, members.row)
        q = Mixture(self.weight.clamp_min(TINY).log(), self.mean, (self.var - members.noise_var).clamp_min(0))
        nats = leak_nats(members.z, label, q, draws["noise"], noise_var=members.noise_var)
        known = (self.n_seen > 0).to(nats.dtype).index_select(0, label)
        leak = (known * nats).sum() / len(nats)
        return leak / members.z.shape[1], {"L": leak.detach()} if has_gauges else {}

    def wants_to_learn(self, step: Step) -> bool:
        return True

    def learn(self, members: Members, draws: Draws, here: World) -> None:
        noisy = members.z + members.noise_var**0.5 * draws["noise"]
        good = noisy.sum(1).isfinite().unsqueeze(1)
        noisy = torch.where(good, noisy, 0.0)
        label = members.label.index_select(0, members.row)
        r = log_joint(noisy, label, self.mixture()).softmax(-1)
        is_new = (self.n_seen == 0).index_select(0, label).unsqueeze(1)
        lots = draws["lots"]  # members of a new class go to groups by lot
        r = torch.where(is_new, (lots == lots.amax(1, keepdim=True)).to(r.dtype), r) * good
        found = moments(noisy, r, soft(r, members), n_rows=members.n_rows, n_groups=self.n_groups)
        count = total(good[:, 0].to(r.dtype), members.row, members.n_rows)
        self._join(found, count, members)

    def _join(self, found: Moments, count: Float[Tensor, "row"], members: Members) -> None:
        """Mix the batch's moments into the running ones, at the rate its members have among those remembered."""
        label = members.label
        old_seen = self.n_seen.index_select(0, label)
        seen = (old_seen + count).clamp_max(self.window)
        rate = (count / seen.clamp_min(1)).clamp_max(1).unsqueeze(-1)
        weight, mean, var = (own.index_select(0, label) for own in (self.weight, self.mean, self.var))
        ours = (1 - rate) * weight
        theirs = rate * found.mass / count.clamp_min(1).unsqueeze(-1)
        both = ours + theirs
        part = (theirs / both.clamp_min(TINY)).unsqueeze(-1)
        gap = found.mean - mean
        new_var = (1 - part) * var + part * found.var + part * (1 - part) * gap.square()
        # added as differences: rows that stand for no class share a label with one that does; their rate is 0
        self.weight.index_add_(0, label, both - weight)
        self.mean.index_add_(0, label, part * gap)
        self.var.index_add_(0, label, (part > 0) * (new_var.clamp_min(members.noise_var) - var))
        self.n_seen.index_add_(0, label, seen - old_seen)
