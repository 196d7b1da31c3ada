"""A conditional-entropy surrogate: classes → groups → moments → gates → hinge → weights over groups and classes.

    penalty = Σ_c (M_c/B) · g_c · [ Σ_k w_k · mean_j gate_kj · hinge(v_kj)  +  I_c/D ]        partitions
    penalty = Σ_c (M_c/B) · g_c · max_k mean_j gate_kj · hinge(v_kj)                          weightings

With the information hinge and no gates, D · penalty = Σ_c (M_c/B)(S_c + I_c) in nats: an in-sample bound on what a
class leaks (information.py). Own parameters are moved by one of three rules, on detached features:

    likelihood   minimize L on noisy features                     default for slots
    ascent       climb the spread the encoder descends            default for pooling; gates always climb
    penalty      descend the penalty itself, as the sources do    warns: the estimator then learns to report little
"""

import warnings
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from splitveil.check import UsageError
from splitveil.mixtures import leak_nats
from splitveil.randomness import stream
from splitveil.regularizers.base import Progress, Step
from splitveil.regularizers.entropy.adam import Adam
from splitveil.regularizers.entropy.gates import Gates
from splitveil.regularizers.entropy.gauges import measure
from splitveil.regularizers.entropy.groupings.base import Grouping, Groups, Rule, Space
from splitveil.regularizers.entropy.groupings.plain import whole
from splitveil.regularizers.entropy.hinge import Hinge, Information
from splitveil.regularizers.entropy.information import density, spread_nats
from splitveil.regularizers.entropy.members import Members
from splitveil.regularizers.entropy.meter import Entry, Meter
from splitveil.regularizers.entropy.metered import Draws, Metered, Purpose, Worth
from splitveil.regularizers.entropy.parallel import World, agree, world
from splitveil.regularizers.entropy.reading import Reading, read
from splitveil.regularizers.entropy.reservoir import Reservoir
from splitveil.regularizers.entropy.settings import Charging, Fitting, Memory
from splitveil.regularizers.entropy.shutoff import Shutoff
from splitveil.regularizers.entropy.threshold import Threshold
from splitveil.regularizers.entropy.vectors import ToVectors


@final
class Surrogate(Metered):
    """The penalty of a grouping. A class with one member is charged nothing."""

    def __init__(
        self,
        grouping: Grouping,
        *,
        hinge: Hinge | None = None,
        gates: Gates | None = None,
        threshold: Threshold | None = None,
        vectors: ToVectors | None = None,
        charging: Charging | None = None,
        fitting: Fitting | None = None,
        memory: Memory | None = None,
        gauge_every: int = 16,
    ) -> None:
        super().__init__()
        self.grouping, self.gates, self.threshold = grouping, gates or Gates(), threshold or Threshold()
        self.hinge, self.charging = hinge or Information(), charging or Charging()
        self.fitting, self.memory = fitting or Fitting(), memory or Memory()
        self.meter = Meter(vectors=vectors, uses_labels=grouping.uses_labels, gauge_every=gauge_every)
        self.adam = Adam(lr=self.fitting.lr)
        self.reservoir = Reservoir(capacity=self.memory.capacity)
        self.remembers = grouping.remembers
        self.early = Shutoff(calls=self.charging.silent_calls, opening=self.charging.shutoff)
        if self.charging.shutoff is not None and not (self.gates.has_dimension or self.gates.snr):
            raise UsageError("shutoff watches the gates of dimensions; add a dimension or snr gate, or leave it out")
        learns_levels = self.threshold.quantile is not None or self.early.is_running
        self._observes = learns_levels or self.gates.share is not None
        self._moves = self.rule != "none" or self.gates.has_dimension
        if self.rule == "penalty":
            warnings.warn("fit='penalty' trains the estimator to report little: its gauges will show", stacklevel=2)

    @property
    def rule(self) -> Rule:
        """How the grouping's own parameters are fitted."""
        return self.fitting.rule or self.grouping.default_rule

    def build(self, space: Space) -> None:
        self.meter.build(space)
        self.grouping.build(space)
        self.gates.build(space)
        self.threshold.build(space.n_classes, like=space.like)
        if self.grouping.remembers:
            self.reservoir.build(space.dim, like=space.like)
        if trained := [*self._own(), *self.gates.parameters()]:
            self.adam.build(trained)
        self.early.build(like=space.like)

    def shapes(self, purpose: Purpose, entry: Entry, *, has_gauges: bool) -> Mapping[str, tuple[int, ...]]:
        needed: dict[str, tuple[int, ...]] = {}
        if (shape := self.grouping.draw_shape(entry.n_rows)) is not None:
            needed["groups"] = shape
        if has_gauges or (purpose == "fit" and self.rule == "likelihood"):
            needed["noise"] = (entry.n_members, entry.dim)
        return needed

    def value(self, members: Members, draws: Draws, *, has_gauges: bool) -> Worth:
        members = self._in_space(members)
        with torch.set_grad_enabled(self.charging.through and torch.is_grad_enabled()):
            groups = self.grouping(members, draws.get("groups"))
        reading = self._read(members, groups)
        gauges: Mapping[str, Tensor] = {}
        if has_gauges:
            gauges = {**measure(reading, draws["noise"], self.meter.n_classes), **self.counts()}
        return self.early(reading.penalty, reading.opened, self.meter.n_calls), gauges

    def counts(self) -> dict[str, Tensor]:
        """What was skipped so far: broken steps, classes of one member, steps the early shutoff silenced."""
        return {
            "broken": self.meter.n_broken.clone(),
            "skipped": self.meter.n_skipped.clone(),
            "shut": self.early.n_shut.clone(),
        }

    def remember(self, z: Tensor, y: Tensor) -> None:
        self.reservoir.add(z if self.charging.space == "features" else F.layer_norm(z, z.shape[1:]), y)

    def phase(self) -> Hashable:
        return self.grouping.phase

    def wants_to_learn(self, step: Step) -> bool:
        return self._observes or (self._moves and step.progress.step % self.fitting.every == 0)

    def learn(self, members: Members, draws: Draws, here: World) -> None:
        members = self._in_space(members)
        self.gates.observe(members)
        if self.threshold.quantile is not None:
            spread = self._read(members, whole(members)).moments.var.mean((1, 2))
            self.threshold.observe(spread, members.label, members.is_charged)
        if self.early.is_running:
            self.early.observe(self._read(members, self.grouping(members, draws.get("groups"))).opened)
        self._move_parameters(members, draws, here)

    def end_epoch(self, progress: Progress) -> None:
        is_due = (progress.epoch + 1) % self.memory.refit_every == 0
        if not (is_due and len(self.reservoir)):
            return
        points, labels = self.reservoir.held()
        self.reservoir.clear()
        if len(points):
            rng = stream(progress.seed, "entropy", "refit", progress.epoch)
            self.grouping.refit(points, labels, noise_var=float(self.meter.noise_var), generator=rng)
            for state in self.grouping.buffers():
                agree(state, world())

    def _move_parameters(self, members: Members, draws: Draws, here: World) -> None:
        """One step by the rule; learned gates climb what they gate, unless the rule is the sources' own."""
        own, gates = self._own(), list[Tensor](self.gates.parameters())
        if not own and not gates:
            return
        with torch.enable_grad():
            groups = self.grouping.learned(members, draws.get("groups"))
            slopes = list(torch.autograd.grad(self._objective(members, groups, draws), own)) if own else []
            if gates:
                with torch.no_grad():
                    still = self.grouping(members, draws.get("groups"))
                sign = 1.0 if self.rule == "penalty" else -1.0
                slopes += torch.autograd.grad(sign * self._read(members, still).penalty, gates)
        self.adam.step(own + gates, slopes, here)

    def _objective(self, members: Members, groups: Groups, draws: Draws) -> Tensor:
        """What the grouping's parameters minimize."""
        reading = self._read(members, groups)
        if self.rule == "penalty":
            return reading.penalty
        scale = reading.class_weight / members.z.shape[1]
        if self.rule == "ascent":
            nats = spread_nats(reading.moments.var, members.noise_var)
            return -(scale.unsqueeze(-1) * reading.opened.weight * nats).sum()
        q = density(members, reading.moments)
        each = leak_nats(members.z, members.row, q, draws["noise"], noise_var=members.noise_var)
        of_member = (scale / members.count.clamp_min(1)).index_select(0, members.row)
        return (of_member * each).sum()

    def _own(self) -> list[Tensor]:
        return [] if self.rule == "none" else list(self.grouping.parameters())

    def _read(self, members: Members, groups: Groups) -> Reading:
        tau = self.threshold.tau(members.noise_var)
        return read(members, groups, gates=self.gates, hinge=self.hinge, tau=tau, charging=self.charging)

    def _in_space(self, members: Members) -> Members:
        if self.charging.space == "features":
            return members
        return replace(members, z=F.layer_norm(members.z, members.z.shape[1:]))
