"""How a class-conditional penalty meets a training step: vectors in, value and gradient out, guarded and counted.

    members = to_vectors(z) of all ranks                 value, ∂value/∂z computed here and now, on a detached leaf
    loss    = value, connected to z by that gradient     value or gradient not finite: both 0, and the step is counted

Computing the gradient at once has four uses: no gradient can reach the regularizer's own parameters, a broken gradient
is seen before it reaches the encoder, nothing of the penalty stays in memory until the encoder's backward pass, and the
whole of it can be replayed as one launch (replay.py). A replayed step is only launched: what it would be checked and
prepared for is in the recording's key.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from splitveil.regularizers.base import Penalty, Regularizer, Step
from splitveil.regularizers.entropy.groupings.base import Space
from splitveil.regularizers.entropy.members import Members
from splitveil.regularizers.entropy.meter import Entry, Meter, Raw
from splitveil.regularizers.entropy.numbers import Drawn
from splitveil.regularizers.entropy.parallel import World, gather, is_alone
from splitveil.regularizers.entropy.replay import Function, Loan, Recording

Worth = tuple[Tensor, Mapping[str, Tensor]]
Draws = Mapping[str, Tensor]  # standard normal numbers by name
Purpose = Literal["charge", "fit"]


class Task(NamedTuple):
    """What is asked of a step."""

    purpose: Purpose
    has_slope: bool = False
    has_gauges: bool = False
    learns: bool = False


class Metered(Regularizer, ABC):
    """A regularizer of class members, made when the first step shows their size.

    Guarantees: `forward` leaves no gradient in own parameters and asks nothing of the device; a step whose penalty is
    not finite is charged a zero that is connected to z, and counted; the state_dict (tensors only) restores everything,
    also into a regularizer that has not seen a step. Call `fit` in every step, from the first on.
    """

    meter: Meter
    remembers: bool = False  # whether `remember` keeps anything
    recorded: tuple[Purpose, ...] = ("charge", "fit")  # what can be recorded

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

    def remember(self, z: Tensor, y: Tensor) -> None:
        """Keep the members for the end of the epoch, in own tensors. Default: nothing is kept."""

    def phase(self) -> Hashable:
        """What, beside tensors, decides how `value` and `learn` go. Default: nothing."""
        return None

    def forward(self, step: Step) -> Penalty:
        meter = self.meter
        raw = meter.raw(step)
        has_slope = raw[0].requires_grad and torch.is_grad_enabled()
        task = Task("charge", has_slope=has_slope, has_gauges=meter.has_gauges(step))
        recording = self._recording(task, step, raw)
        if recording is None:
            worth, slope, *packed = self._call(task, step, raw)
            loan = Loan(slope)
        else:
            recording.inputs.take(raw[0], raw[1], step.progress)
            outputs = recording.play(step.progress)
            worth, loan, packed = outputs[0].clone(), recording.lend(outputs[1]), [out.clone() for out in outputs[2:]]
        loss: Tensor = _Charged.apply(raw[0], worth, loan) if has_slope else worth  # type: ignore[no-untyped-call]
        return Penalty(loss, {"penalty": worth, **meter.unpack(packed)})

    def fit(self, step: Step) -> None:
        learns = self.wants_to_learn(step)
        if not learns and not self.remembers:
            return
        raw, task = self.meter.raw(step), Task("fit", learns=learns)
        recording = self._recording(task, step, raw)
        if recording is None:
            self._call(task, step, raw)
        else:
            recording.inputs.keep(raw[0], raw[1], step.progress)
            recording.play(step.progress)

    def broken_steps(self) -> Tensor | None:
        return self.meter.n_broken if self.meter.n_classes else None

    def _recording(self, task: Task, step: Step, raw: Raw) -> Recording | None:
        """What to replay for this step; None while it is to be called."""
        if task.purpose not in self.recorded or not is_alone():
            return None
        z, y, noise_var = raw
        key = (task, self.phase(), noise_var, step.n_classes, z.shape, z.dtype, z.device, y.shape)
        replay = self.meter.replay
        found = replay.find(key)
        if found is not None or not replay.is_due(key, z):
            return found
        entry, drawn = self._prepare(task, step, raw)
        return replay.record(key, self._work(task, entry, drawn), z, y, drawn)

    def _call(self, task: Task, step: Step, raw: Raw) -> tuple[Tensor, ...]:
        """The same without a recording; of the gradient, the part that is this process's."""
        entry, drawn = self._prepare(task, step, raw)
        if drawn is not None:
            drawn.fill(step.progress.seed, step.progress.step)
        rank, size = entry.here.rank, entry.here.size
        z, y = gather(raw[0], entry.here), gather(raw[1], entry.here)
        outputs = self._work(task, entry, drawn)(z, y)
        if size == 1 or task.purpose == "fit":
            return outputs
        n = len(raw[0])  # data parallelism averages the gradients of the ranks
        return outputs[0], outputs[1][rank * n : (rank + 1) * n] * size, *outputs[2:]

    def _prepare(self, task: Task, step: Step, raw: Raw) -> tuple[Entry, Drawn | None]:
        """Check the step, make or move own tensors, find room for random numbers."""
        entry, z = self.meter.enter(step, raw), raw[0]
        if not self.meter.n_classes:
            self.build(Space(entry.dim, entry.n_classes, step.progress.seed, z.detach()[:0]))
            self.meter.noise_var.fill_(entry.noise_var)
        elif self.meter.layout.device != z.device:
            self.to(z.device)
        shapes = self.shapes(task.purpose, entry, has_gauges=task.has_gauges)
        return entry, self.meter.numbers.room(shapes, key=f"entropy-{task.purpose}", like=z)

    def _work(self, task: Task, entry: Entry, drawn: Drawn | None) -> Function:
        """What is called or recorded: a function of features and labels, without autocast."""
        function = self._charged if task.purpose == "charge" else self._moved
        draws = {} if drawn is None else drawn.arrays

        def work(z: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            if not torch.is_autocast_enabled(z.device.type):
                return function(z, y, task, entry, draws)
            with torch.autocast(z.device.type, enabled=False):
                return function(z, y, task, entry, draws)

        return work

    def _charged(self, z: Tensor, y: Tensor, task: Task, entry: Entry, draws: Draws) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            members = self.meter.members(z.detach().flatten(1).requires_grad_(task.has_slope), y, entry)
            worth, gauges = self.value(members, draws, has_gauges=task.has_gauges)
            slope = torch.autograd.grad(worth, members.z)[0] if task.has_slope else torch.zeros_like(members.z)
        with torch.no_grad():
            worth, slope = self.meter.guard(members, worth.detach(), slope)
        slope = slope.view(z.shape)
        if not z.is_contiguous():  # a gradient that lies as the features do spares the encoder conversions
            slope = torch.empty_like(z).copy_(slope)
        return worth, slope, *self.meter.pack(gauges, like=worth)

    @torch.no_grad()
    def _moved(self, z: Tensor, y: Tensor, task: Task, entry: Entry, draws: Draws) -> tuple[Tensor, ...]:
        members = self.meter.members(z.detach().flatten(1), y, entry)
        if self.remembers:
            self.remember(members.z, self.meter.labels(y))
        if task.learns:
            self.learn(members, draws, entry.here)
        return ()

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self.meter.replay.forget()  # tensors may move to other memory
        self.meter.numbers.forget()
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        self.meter.replay.forget()  # tensors may be others afterwards
        layout = state_dict.get(prefix + "meter.layout")
        if layout is not None and not self.meter.n_classes:
            dim, n_classes, is_double = layout.tolist()
            dtype = torch.float64 if is_double else torch.float32
            self.build(Space(dim, n_classes, 0, torch.zeros(0, dtype=dtype, device=layout.device)))
        super()._load_from_state_dict(state_dict, prefix, *rest)


class _Charged(torch.autograd.Function):
    """A value with a gradient that is already known."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, worth: Tensor, slope: Loan) -> Tensor:
        ctx.slope = slope
        return worth.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.slope.tensor * grads[0], None, None
