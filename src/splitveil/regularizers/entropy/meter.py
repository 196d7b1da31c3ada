"""How a class-conditional penalty meets a training step: vectors in, value and gradient out, guarded and counted.

    members = to_vectors(z) of all ranks                 value, ∂value/∂z computed here and now, on a detached leaf
    loss    = value, connected to z by that gradient     value or gradient not finite: both 0, and the step is counted

Computing the gradient at once has three uses: no gradient can reach the regularizer's own parameters, a broken gradient
is seen before it reaches the encoder, and nothing of the penalty stays in memory until the encoder's backward pass.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from splitveil.check import positive
from splitveil.randomness import SeededSource
from splitveil.regularizers.base import Penalty, Regularizer, Step
from splitveil.regularizers.entropy.groupings.base import Space
from splitveil.regularizers.entropy.members import Members, assemble, total
from splitveil.regularizers.entropy.parallel import World, gather, world
from splitveil.regularizers.entropy.vectors import ToVectors

Worth = tuple[Tensor, Mapping[str, Tensor]]


@dataclass(frozen=True)
class Entry:
    """A step's members: those of this process, still connected to the encoder, and detached those of all."""

    mine: Tensor
    members: Members
    here: World


@final
class Meter(nn.Module):
    """Turns steps into members, and counts what is skipped.

    `n_broken` steps had no finite penalty (the last one was `broken_step`; `broken` counts them by class), `n_skipped`
    classes had one member only.
    """

    layout: Tensor
    noise_var: Tensor
    n_calls: Tensor
    n_broken: Tensor
    n_skipped: Tensor
    broken_step: Tensor
    broken: Tensor

    def __init__(self, *, vectors: ToVectors | None = None, uses_labels: bool = True, gauge_every: int = 16) -> None:
        super().__init__()
        self.vectors, self.uses_labels = vectors or ToVectors(), uses_labels
        self.gauge_every = gauge_every
        self.n_classes = 0  # 0 until built

    def build(self, space: Space) -> None:
        """Make the counters."""
        self.n_classes = space.n_classes
        device = space.like.device
        is_double = int(space.like.dtype == torch.float64)
        self.register_buffer("layout", torch.tensor([space.dim, space.n_classes, is_double], device=device))
        self.register_buffer("noise_var", torch.zeros((), dtype=torch.float64, device=device))
        for name in ("n_calls", "n_broken", "n_skipped"):
            self.register_buffer(name, torch.zeros((), dtype=torch.long, device=device))
        self.register_buffer("broken_step", torch.full((), -1, dtype=torch.long, device=device))
        self.register_buffer("broken", torch.zeros(space.n_classes, dtype=torch.long, device=device))

    def has_gauges(self, step: Step) -> bool:
        """Whether this step shows all gauges, not only the penalty."""
        return step.progress.step % self.gauge_every == 0

    def enter(self, step: Step) -> Entry:
        """The members of a step, in float32 at least."""
        positive("noise_std", step.noise_std, hint="without noise, shrinking features is only a change of scale")
        vectors = self.vectors(step.z, step.y, noise_std=step.noise_std)
        mine = vectors.z if vectors.z.dtype == torch.float64 else vectors.z.float()
        here = world()
        z, y, n_classes = gather(mine, here), gather(vectors.y, here), step.n_classes
        if not self.uses_labels:
            y, n_classes = torch.zeros_like(y), 1
        return Entry(mine, assemble(z, y, n_classes=n_classes, noise_var=vectors.noise_var), here)

    def charge(self, entry: Entry, worth: Tensor, slope: Tensor, step: Step) -> Penalty:
        """Charge `worth` to the features of this process, whose gradient is the own rows of `slope`."""
        fine = slope.sum(1).isfinite() & worth.isfinite()
        is_fine = fine.all()
        self._count(entry.members, fine, is_fine, step)
        worth = torch.where(is_fine, worth, 0.0)
        first = entry.here.rank * len(entry.mine)
        mine = slope[first : first + len(entry.mine)]
        if entry.here.size > 1:
            mine = mine * entry.here.size
        with torch.enable_grad():
            loss: Tensor = _Charged.apply(entry.mine, worth, torch.where(is_fine, mine, 0.0))  # type: ignore[no-untyped-call]
        return Penalty(loss, {"penalty": worth, "broken": self.n_broken.clone()})

    def _count(self, members: Members, fine: Tensor, is_fine: Tensor, step: Step) -> None:
        self.n_calls += 1
        self.n_broken += ~is_fine
        self.n_skipped += (members.count == 1).sum()
        self.broken_step.copy_(torch.where(is_fine, self.broken_step, step.progress.step))
        of_class = total((~fine).to(members.count.dtype), members.row, members.n_rows) > 0
        self.broken.index_add_(0, members.label, of_class.long())


class Metered(Regularizer, ABC):
    """A regularizer of class members, made when the first step shows their size.

    Guarantees: `forward` leaves no gradient in own parameters and asks nothing of the device; a step whose penalty is
    not finite is charged a zero that is connected to z, and counted; the state_dict (tensors only) restores everything,
    also into a regularizer that has not seen a step. Call `fit` in every step, from the first on.
    """

    meter: Meter

    @abstractmethod
    def build(self, space: Space) -> None:
        """Make parameters and buffers, the meter's included."""

    @abstractmethod
    def value(self, members: Members, step: Step) -> Worth:
        """The penalty of these members and its gauges; differentiable in their z."""

    @abstractmethod
    def learn(self, members: Members, step: Step, here: World) -> None:
        """Move own state one step on detached members."""

    def forward(self, step: Step) -> Penalty:
        with torch.autocast(step.z.device.type, enabled=False):
            entry = self._enter(step)
            wants_gradient = torch.is_grad_enabled() and entry.mine.requires_grad
            with torch.enable_grad():
                leaf = entry.members.z.requires_grad_(wants_gradient)
                worth, gauges = self.value(entry.members, step)
                slope = torch.autograd.grad(worth, leaf)[0] if wants_gradient else torch.zeros_like(leaf)
            with torch.no_grad():
                penalty = self.meter.charge(entry, worth.detach(), slope, step)
        return Penalty(penalty.loss, {**penalty.gauges, **gauges})

    @torch.no_grad()
    def fit(self, step: Step) -> None:
        with torch.autocast(step.z.device.type, enabled=False):
            entry = self._enter(step)
            self.learn(entry.members, step, entry.here)

    def _enter(self, step: Step) -> Entry:
        entry = self.meter.enter(step)
        if not self.meter.n_classes:
            n_classes = step.n_classes if self.meter.uses_labels else 1
            self.build(Space(entry.mine.shape[1], n_classes, step.progress.seed, entry.mine.detach()[:0]))
            self.meter.noise_var.fill_(entry.members.noise_var)
        elif self.meter.layout.device != entry.mine.device:
            self.to(entry.mine.device)
        return entry

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        layout = state_dict.get(prefix + "meter.layout")
        if layout is not None and not self.meter.n_classes:
            dim, n_classes, is_double = layout.tolist()
            dtype = torch.float64 if is_double else torch.float32
            self.build(Space(dim, n_classes, 0, torch.zeros(0, dtype=dtype, device=layout.device)))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def noise_like(members: Members, step: Step) -> Tensor:
    """Standard normal numbers for the members of this step."""
    source = SeededSource(step.progress.seed, "entropy", "noise", step.progress.step)
    return source.normal(members.z.shape, device=members.z.device).to(members.z.dtype)


class _Charged(torch.autograd.Function):
    """A value with a gradient that is already known."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, worth: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(slope)
        return worth.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return slope * grads[0], None, None
