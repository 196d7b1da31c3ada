"""What a class-conditional penalty needs of a training step, and what is counted of it.

features, σ → members of all ranks          value or gradient not finite: both 0, and the step is counted
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from splitveil.check import positive
from splitveil.regularizers.base import Step
from splitveil.regularizers.entropy.groupings.base import Space
from splitveil.regularizers.entropy.members import Members, assemble, total
from splitveil.regularizers.entropy.numbers import Numbers
from splitveil.regularizers.entropy.parallel import World, world
from splitveil.regularizers.entropy.replay import Replay
from splitveil.regularizers.entropy.vectors import ToVectors

Raw = tuple[Tensor, Tensor, float]  # features whose first axis is the member, labels, σ² of one coordinate


WIDE = (torch.float32, torch.float64)  # precisions that spread is taken in


@dataclass(frozen=True)
class Entry:
    """A step in numbers: the members of all processes, and how they are seen."""

    n_members: int
    dim: int
    n_classes: int
    noise_var: float
    here: World

    @property
    def n_rows(self) -> int:
        """Rows of per-class state."""
        return min(self.n_classes, self.n_members)


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
        self._is_flat = self.vectors.how == "flatten"
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

    def raw(self, step: Step) -> Raw:
        """Features as vectors in float32 at least, connected to the encoder; those to be flattened still are not."""
        if self._is_flat and step.z.dtype in WIDE:
            return step.z, step.y, step.noise_std**2
        vectors = self.vectors(step.z, step.y, noise_std=step.noise_std)
        return vectors.z if vectors.z.dtype in WIDE else vectors.z.float(), vectors.y, vectors.noise_var

    def enter(self, step: Step, raw: Raw) -> Entry:
        """The step in numbers."""
        positive("noise_std", step.noise_std, hint="without noise, shrinking features is only a change of scale")
        (z, _, noise_var), here = raw, world()
        n_classes = step.n_classes if self.uses_labels else 1
        return Entry(here.size * len(z), math.prod(z.shape[1:]), n_classes, noise_var, here)

    def labels(self, y: Tensor) -> Tensor:
        """The class of every member."""
        return y if self.uses_labels else torch.zeros_like(y)

    def members(self, z: Tensor, y: Tensor, entry: Entry) -> Members:
        """The members with their rows."""
        return assemble(z, self.labels(y), n_classes=entry.n_classes, noise_var=entry.noise_var)

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
