"""Replay a step's arithmetic as one CUDA graph.

The penalty of a step is a hundred small kernels; launching them one by one costs the host more than the kernels cost
the device. What is launched never depends on values, so after a few steps of one shape it is recorded, and from then on
replayed with one launch. Elsewhere than on CUDA, and with several ranks, the function is simply called.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

WARM_UP = 3  # calls before recording: libraries choose their kernels in the first

Function = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True)
class _Recording:
    graph: "torch.cuda.CUDAGraph"
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@final
class Replay:
    """Recordings by key. A key must name everything the function depends on beside its inputs and in-place state.

    Guarantees: outputs are the caller's to keep; a copy of a module starts without recordings.
    """

    def __init__(self, *, is_on: bool = True) -> None:
        self.is_on = is_on
        self._calls: Counter[Hashable] = Counter()
        self._recordings: dict[Hashable, _Recording] = {}

    def __call__(self, key: Hashable, function: Function, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """`function(*inputs)`, recorded or not."""
        if not self.is_on or inputs[0].device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return function(*inputs)
        key = (key, *((t.shape, t.dtype) for t in inputs))
        self._calls[key] += 1
        if self._calls[key] <= WARM_UP:
            return function(*inputs)
        if key not in self._recordings:
            self._recordings[key] = _record(function, inputs)
        recording = self._recordings[key]
        for mine, given in zip(recording.inputs, inputs, strict=True):
            mine.copy_(given)
        recording.graph.replay()
        return tuple(out.clone() for out in recording.outputs)

    def forget(self) -> None:
        """Drop the recordings, when state has moved to other memory."""
        self._calls.clear()
        self._recordings.clear()

    def __deepcopy__(self, memo: dict[int, object]) -> "Replay":
        return Replay(is_on=self.is_on)

    def __reduce__(self) -> tuple[type["Replay"], tuple[()]]:
        return (Replay, ())


def _record(function: Function, inputs: Sequence[Tensor]) -> _Recording:
    own = tuple(t.detach().clone() for t in inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        outputs = function(*own)
    return _Recording(graph, own, outputs)
