"""Cutting an nn.Sequential: its children up to the name, and its children after it. Nothing is traced.

    Sequential(a, b, c)  after b  =  Sequential(a, b) | Sequential(c)

A child that is itself cut appears in both halves under its own name, so the halves' state-dict keys are the model's.
"""

from collections.abc import Iterable

from torch import nn


def is_plain(module: nn.Module) -> bool:
    """Whether calling the module is calling its children in order, whatever its class is called."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def is_empty(module: nn.Module) -> bool:
    """Whether the module is a plain Sequential without children: it does nothing."""
    return is_plain(module) and not module._modules


def around(model: nn.Module, name: str, inner: tuple[nn.Module, nn.Module]) -> tuple[nn.Sequential, nn.Sequential]:
    """The halves of a plain Sequential around its child `name`, which is itself cut into `inner`."""
    children = [(key, child) for key, child in model._modules.items() if child is not None]
    place = [key for key, _ in children].index(name)  # not named_children(): it skips a module that stands twice
    front, back = inner
    return _sequence([*children[:place], (name, front)]), _sequence([(name, back), *children[place + 1 :]])


def _sequence(children: Iterable[tuple[str, nn.Module]]) -> nn.Sequential:
    """A Sequential of these children under their names, leaving out halves with nothing in them."""
    sequence = nn.Sequential()
    for name, child in children:
        if not is_empty(child):
            sequence.add_module(name, child)
    return sequence
