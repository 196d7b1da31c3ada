"""Sequentials whose layers have names: a cut is said by name."""

from torch import nn


def named(**layers: nn.Module) -> nn.Sequential:
    """A Sequential whose layers have names."""
    sequence = nn.Sequential()
    for name, layer in layers.items():
        sequence.add_module(name, layer)
    return sequence


def numbered(name: str, layers: list[nn.Module]) -> nn.Sequential:
    """A Sequential of name1, name2, …"""
    return named(**{f"{name}{i}": layer for i, layer in enumerate(layers, start=1)})
