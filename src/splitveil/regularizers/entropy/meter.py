"""How a class-conditional penalty meets a training step: vectors in, value and gradient out, guarded and counted.

    members = to_vectors(z) of all ranks                 value, ∂value/∂z computed here and now, on a detached leaf
    loss    = value, connected to z by that gradient     value or gradient not finite: both 0, and the step is counted

Computing the gradient at once has four uses: no gradient can reach the regularizer's own parameters, a broken gradient
is seen before it reaches the encoder, nothing of the penalty stays in memory until the encoder's backward pass, and the
whole of it can be replayed as one launch (replay.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from splitveil.check import positive
from splitveil.regularizers.base import Penalty, Regularizer, Step
from splitveil.regularizers.entropy.groupings.base import Space
from splitveil.regularizers.entropy.members import Members, assemble, total
from splitveil.regularizers.entropy.numbers import Numbers
from splitveil.regularizers.entropy.parallel import World, gather, world
from splitveil.regularizers.entropy.replay import Replay
from splitveil.regularizers.entropy.vectors import ToVectors

Worth = tuple[Tensor, Mapping[str, Tensor]]
Draws = Mapping[str, Tensor]  # standard normal numbers by name
Purpose = Literal["charge", "fit"]


@dataclass(frozen=True)
class Entry:
    """A step's vectors: those of this process, still connected to the encoder, and detached those of all."""

    mine: Tensor
    z: Tensor
    y: Tensor
    n_classes: int
    noise_var: float
    here: World

    @property
    def n_rows(self) -> int:
        """Rows of per-class state."""
        return min(self.n_classes, len(self.y))

    def members(self, z: Tensor, y: Tensor) -> Members:
        """The vectors with their rows."""
        return assemble(z, y, n_classes=self.n_classes, noise_var=self.noise_var)


@final
class Meter(nn.Module):
    """Turns steps into vectors, and counts what is skipped.

    `n_broken` of `n_calls` had no finite penalty (the last one was `broken_call`; `broken` counts them by class),
    `n_skipped` classes had one member only.
    """

    layout: Tensor
    noise_var: Tensor
    n_calls: Tensor
    n_broken: Tensor
    n_skipped: Tensor
    broken_call: Tensor
    broken: Tensor

    def __init__(self, *, vectors: ToVectors | None = None, uses_labels: bool = True, gauge_every: int = 16) -> None:
        super().__init__()
        self.vectors, self.uses_labels = vectors or ToVectors(), uses_labels
        self.gauge_every = gauge_every
        self.replay, self.numbers = Replay(), Numbers()
        self.n_classes = 0  # 0 until built
        self._numbers, self._vectors = list[str](), list[str]()  # names of the gauges

    def build(self, space: Space) -> None:
        """Make the counters."""
        self.n_classes = space.n_classes
        device = space.like.device
        is_double = int(space.like.dtype == torch.float64)
        self.register_buffer("layout", torch.tensor([space.dim, space.n_classes, is_double], device=device))
        self.register_buffer("noise_var", torch.zeros((), dtype=torch.float64, device=device))
        for name in ("n_calls", "n_broken", "n_skipped"):
            self.register_buffer(name, torch.zeros((), dtype=torch.long, device=device))
        self.register_buffer("broken_call", torch.full((), -1, dtype=torch.long, device=device))
        self.register_buffer("broken", torch.zeros(space.n_classes, dtype=torch.long, device=device))

    def pack(self, gauges: Mapping[str, Tensor], *, like: Tensor) -> tuple[Tensor, ...]:
        """Gauges as few tensors: all numbers as one, then the vectors. Nothing for none."""
        if not gauges:
            return ()
        self._numbers = [name for name, value in gauges.items() if value.ndim == 0]
        self._vectors = [name for name, value in gauges.items() if value.ndim > 0]
        return torch.stack([gauges[n].to(like.dtype) for n in self._numbers]), *(gauges[n] for n in self._vectors)

    def unpack(self, packed: Sequence[Tensor]) -> dict[str, Tensor]:
        """The gauges by name again."""
        if not packed:
            return {}
        numbers = dict(zip(self._numbers, packed[0].unbind(), strict=True))
        return {**numbers, **dict(zip(self._vectors, packed[1:], strict=True))}

    def has_gauges(self, step: Step) -> bool:
        """Whether this step shows all gauges, not only the penalty."""
        return step.progress.step % self.gauge_every == 0

    def enter(self, step: Step) -> Entry:
        """The vectors of a step, in float32 at least."""
        positive("noise_std", step.noise_std, hint="without noise, shrinking features is only a change of scale")
        vectors = self.vectors(step.z, step.y, noise_std=step.noise_std)
        mine = vectors.z if vectors.z.dtype == torch.float64 else vectors.z.float()
        here = world()
        self.replay.is_on = self.replay.is_on and here.size == 1
        z, y, n_classes = gather(mine, here), gather(vectors.y, here), step.n_classes
        if not self.uses_labels:
            y, n_classes = torch.zeros_like(y), 1
        return Entry(mine, z, y, n_classes, vectors.noise_var, here)

    def guard(self, members: Members, worth: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Value and gradient, or zeros if either is not finite; counts it."""
        fine = slope.sum(1).isfinite()
        is_fine = fine.all() & worth.isfinite()
        self.n_calls += 1
        self.n_broken += ~is_fine
        self.n_skipped += (members.count == 1).sum()
        self.broken_call.copy_(torch.where(is_fine, self.broken_call, self.n_calls))
        of_class = total((~fine).to(members.count.dtype), members.row, members.n_rows) > 0
        self.broken.index_add_(0, members.label, of_class.long())
        return torch.where(is_fine, worth, 0.0), torch.where(is_fine, slope, 0.0)


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
    def shapes(self, purpose: Purpose, entry: Entry, *, has_gauges: bool) -> Mapping[str, tuple[int, ...]]:
        """The standard normal numbers that `value` or `learn` needs, by name."""

    @abstractmethod
    def value(self, members: Members, draws: Draws, *, has_gauges: bool) -> Worth:
        """The penalty of these members and its gauges; differentiable in their z."""

    def learn(self, members: Members, draws: Draws, here: World) -> None:
        """Move own tensors in place, on detached members. Default: nothing moves."""

    def wants_to_learn(self, step: Step) -> bool:
        """Whether `learn` has anything to do in this step. Default: no."""
        return False

    @property
    def remembers(self) -> bool:
        """Whether `remember` keeps anything. Default: no."""
        return False

    def remember(self, entry: Entry) -> None:
        """Keep the members for the end of the epoch. Default: nothing is kept."""

    def phase(self) -> Hashable:
        """What, beside tensors, decides how `value` and `learn` go. Default: nothing."""
        return None

    def forward(self, step: Step) -> Penalty:
        entry = self._enter(step)
        has_gauges = self.meter.has_gauges(step)
        wants_gradient = torch.is_grad_enabled() and entry.mine.requires_grad
        draws = self._draw("charge", entry, step, has_gauges=has_gauges)

        def charged(z: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            with torch.enable_grad():
                members = entry.members(z.detach().requires_grad_(wants_gradient), y)
                worth, gauges = self.value(members, draws, has_gauges=has_gauges)
                slope = torch.autograd.grad(worth, members.z)[0] if wants_gradient else torch.zeros_like(z)
            with torch.no_grad():
                worth, slope = self.meter.guard(members, worth.detach(), slope)
            return worth, slope, *self.meter.pack(gauges, like=worth)

        worth, slope, *packed = self._replayed(("charge", wants_gradient, has_gauges), charged, entry)
        return Penalty(_connected(entry, worth, slope), {"penalty": worth, **self.meter.unpack(packed)})

    @torch.no_grad()
    def fit(self, step: Step) -> None:
        wants_to_learn = self.wants_to_learn(step)
        if not wants_to_learn and not self.remembers:
            return
        entry = self._enter(step)
        self.remember(entry)
        if not wants_to_learn:
            return
        draws = self._draw("fit", entry, step, has_gauges=False)

        def moved(z: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            self.learn(entry.members(z, y), draws, entry.here)
            return ()

        self._replayed("fit", moved, entry)

    def broken_steps(self) -> Tensor | None:
        return self.meter.n_broken if self.meter.n_classes else None

    def _replayed(self, key: Hashable, function: Callable[..., tuple[Tensor, ...]], entry: Entry) -> tuple[Tensor, ...]:
        key = (key, self.phase(), entry.noise_var, entry.n_classes)
        if not torch.is_autocast_enabled(entry.z.device.type):
            return self.meter.replay(key, function, (entry.z, entry.y))
        with torch.autocast(entry.z.device.type, enabled=False):
            return self.meter.replay(key, function, (entry.z, entry.y))

    def _draw(self, purpose: Purpose, entry: Entry, step: Step, *, has_gauges: bool) -> Draws:
        shapes = self.shapes(purpose, entry, has_gauges=has_gauges)
        at = step.progress
        return self.meter.numbers(shapes, seed=at.seed, key=f"entropy-{purpose}", step=at.step, like=entry.z)

    def _enter(self, step: Step) -> Entry:
        entry = self.meter.enter(step)
        if not self.meter.n_classes:
            self.build(Space(entry.mine.shape[1], entry.n_classes, step.progress.seed, entry.z[:0]))
            self.meter.noise_var.fill_(entry.noise_var)
        elif self.meter.layout.device != entry.z.device:
            self.to(entry.z.device)
        return entry

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self.meter.replay.forget()  # tensors may move to other memory
        self.meter.numbers.forget()
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        layout = state_dict.get(prefix + "meter.layout")
        if layout is not None and not self.meter.n_classes:
            dim, n_classes, is_double = layout.tolist()
            dtype = torch.float64 if is_double else torch.float32
            self.build(Space(dim, n_classes, 0, torch.zeros(0, dtype=dtype, device=layout.device)))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _connected(entry: Entry, worth: Tensor, slope: Tensor) -> Tensor:
    """The value as a loss of this process's features. Data parallelism averages the gradients of the ranks."""
    first, n = entry.here.rank * len(entry.mine), entry.here.size
    mine = slope if n == 1 else slope[first : first + len(entry.mine)] * n
    loss: Tensor = _Charged.apply(entry.mine, worth, mine)  # type: ignore[no-untyped-call]
    return loss


class _Charged(torch.autograd.Function):
    """A value with a gradient that is already known."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, worth: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(slope)
        return worth.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return slope * grads[0], None, None
