"""A recording without a GPU: the operations of a function, run again on the same memory.

What a CUDA graph does, tensor for tensor: recording computes nothing, values of Python are frozen, inputs and state are
read where they lay, and every replay writes its results where the recording's lay.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from splitveil.regularizers.entropy import replay


def record_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let surrogates record and replay here as they do on CUDA."""
    monkeypatch.setattr(replay, "_record", record)
    monkeypatch.setattr(replay, "_can_record", lambda z: True)
    monkeypatch.setattr(replay, "_is_capturing", lambda: False)


def record(
    function: Callable[[Tensor, Tensor], tuple[Tensor, ...]], z: Tensor, y: Tensor
) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
    """How to replay it, and where its outputs are."""
    with Tape() as tape:
        outputs = function(z, y)
    tape.restore()
    return tape.replay, outputs


class Tape(TorchDispatchMode):
    """Every operation with what it read and where it wrote."""

    def __init__(self) -> None:
        super().__init__()
        self._entries: list[tuple[Any, Any, Any, Any]] = []
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for tensor in _written(func, args, kwargs):
            self._before.setdefault(id(tensor), (tensor, tensor.clone()))
        out = func(*args, **kwargs)
        self._entries.append((func, args, kwargs, out))
        return out

    @torch.no_grad()
    def restore(self) -> None:
        """Undo what recording wrote."""
        for tensor, before in reversed(self._before.values()):
            tensor.copy_(before)
        self._before.clear()

    @torch.no_grad()
    def replay(self) -> None:
        """Run it again."""
        for func, args, kwargs, out in self._entries:
            for old, new in zip(_tensors(out), _tensors(func(*args, **kwargs)), strict=True):
                if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                    old.copy_(new)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The arguments that this operation changes in place."""
    given = zip(func._schema.arguments, args, strict=False)
    named = [(argument, kwargs.get(argument.name)) for argument in func._schema.arguments[len(args) :]]
    is_written = [value for argument, value in [*given, *named] if argument.alias_info and argument.alias_info.is_write]
    return _tensors(is_written)
