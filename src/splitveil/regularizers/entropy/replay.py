"""Replay a step's arithmetic as one CUDA graph.

The penalty of a step is a hundred small kernels; launching them one by one costs the host more than the kernels cost
the device. What is launched never depends on values, so after a few steps of one shape it is recorded, and from then on
replayed with one launch. Elsewhere than on CUDA, and with several ranks, the function is simply called.

A recording reads and writes memory that stays where it is: the features and labels of the step are copied there, once
for all recordings of the step, and what comes out is the recording's until it is replayed again (`Loan`).
"""

import weakref
from collections import Counter
from collections.abc import Callable, Hashable
from typing import final

import torch
from torch import Tensor

from splitveil.regularizers.base import Progress
from splitveil.regularizers.entropy.numbers import Drawn

WARM_UP = 3  # calls before recording: libraries choose their kernels in the first

Function = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
Launch = Callable[[], None]


@final
class Loan:
    """A tensor that may lie in a recording's memory; before the recording is replayed it gets memory of its own."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@final
class Inputs:
    """The features and labels that recordings of one shape read."""

    __slots__ = ("_given", "y", "z")

    def __init__(self, z: Tensor, y: Tensor) -> None:
        self.z, self.y = z.detach().clone(), y.clone()
        self._given: tuple[Progress, Tensor, int, Tensor, int] | None = None

    def take(self, z: Tensor, y: Tensor, at: Progress) -> None:
        """Copy these, unless `keep` copied the same ones, unchanged since, in the same step."""
        given, self._given = self._given, None
        if given is not None and given[0] is at:
            _, old_z, z_version, old_y, y_version = given
            is_same_z = old_z.data_ptr() == z.data_ptr() and z_version == z._version
            if is_same_z and old_y is y and y_version == y._version:
                return
        self.z.copy_(z.detach())
        self.y.copy_(y)

    def keep(self, z: Tensor, y: Tensor, at: Progress) -> None:
        """Copy these, which `take` will be asked for again. They are held until then: no others take their place."""
        z = z.detach()
        self.z.copy_(z)
        self.y.copy_(y)
        has_versions = not (z.is_inference() or y.is_inference())
        self._given = (at, z, z._version, y, y._version) if has_versions else None


@final
class Recording:
    """A function of features, labels and drawn numbers, as recorded."""

    def __init__(self, launch: Launch, inputs: Inputs, outputs: tuple[Tensor, ...], drawn: Drawn | None) -> None:
        self.launch, self.inputs, self.outputs, self.drawn = launch, inputs, outputs, drawn
        self._lent: weakref.ref[Loan] | None = None

    def play(self, at: Progress) -> tuple[Tensor, ...]:
        """The outputs for the inputs as they are now, with fresh numbers; to be read before the next call."""
        if self._lent is not None:
            loan = self._lent()
            if loan is not None:
                loan.tensor = loan.tensor.clone()
            self._lent = None
        if self.drawn is not None:
            self.drawn.fill(at.seed, at.step)
        self.launch()
        return self.outputs

    def lend(self, tensor: Tensor) -> Loan:
        """One of the outputs, for longer."""
        loan = Loan(tensor)
        self._lent = weakref.ref(loan)
        return loan


@final
class Replay:
    """Recordings by key. A key must name everything the function depends on beside its inputs and in-place state.

    Guarantees: a copy of a module starts without recordings.
    """

    def __init__(self, *, is_on: bool = True) -> None:
        self.is_on = is_on
        self._calls: Counter[Hashable] = Counter()
        self._recordings: dict[Hashable, Recording] = {}
        self._inputs: dict[Hashable, Inputs] = {}

    def find(self, key: Hashable) -> Recording | None:
        """The recording of this key, if there is one and it can be replayed now."""
        recording = self._recordings.get(key)
        return None if recording is None or not self.is_on or _is_capturing() else recording

    def is_due(self, key: Hashable, z: Tensor) -> bool:
        """Count a call of what would be recorded under this key; True once it has been called often enough."""
        if not self.is_on or not _can_record(z) or _is_capturing():
            return False
        self._calls[key] += 1
        return self._calls[key] > WARM_UP

    def record(self, key: Hashable, function: Function, z: Tensor, y: Tensor, drawn: Drawn | None) -> Recording:
        """Record the function; nothing is computed yet."""
        layout = (z.shape, z.dtype, z.device, y.shape, y.dtype)
        if layout not in self._inputs:
            self._inputs[layout] = Inputs(z, y)
        inputs = self._inputs[layout]
        launch, outputs = _record(function, inputs.z, inputs.y)
        self._recordings[key] = Recording(launch, inputs, outputs, drawn)
        return self._recordings[key]

    def forget(self) -> None:
        """Drop the recordings, when state has moved to other memory."""
        self._calls.clear()
        self._recordings.clear()
        self._inputs.clear()

    def __deepcopy__(self, memo: dict[int, object]) -> "Replay":
        return Replay(is_on=self.is_on)

    def __reduce__(self) -> tuple[type["Replay"], tuple[()]]:
        return (Replay, ())


def _can_record(z: Tensor) -> bool:
    return z.is_cuda


def _is_capturing() -> bool:
    return torch.cuda.is_current_stream_capturing()


def _record(function: Function, z: Tensor, y: Tensor) -> tuple[Launch, tuple[Tensor, ...]]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        outputs = function(z, y)
    return graph.replay, outputs
