"""One graph for training and evaluation.

A traced forward has read `self.training` once and frozen it: F.dropout(x, training=self.training) would drop for ever,
or never. So the model is traced in both modes; where the two graphs differ in nothing but booleans that follow the
mode, those booleans become reads of the module's own flag.
"""

import operator
from typing import Any

from torch import fx

from splitveil.split.obstacle import Obstacle

DIFFERENT = "the forward pass around it takes another path in training than in evaluation"


def unify(training: fx.Graph, evaluation: fx.Graph) -> fx.Graph:
    """The graph that is `training` in training mode and `evaluation` otherwise."""
    if len(training.nodes) != len(evaluation.nodes):
        raise Obstacle(DIFFERENT)
    mates = dict(zip(training.nodes, evaluation.nodes, strict=True))
    flag = _Flag(training)
    for node, mate in mates.items():
        if (node.op, node.target) != (mate.op, mate.target):
            raise Obstacle(DIFFERENT)
        node.args = flag.merge(node.args, mate.args, mates)
        node.kwargs = flag.merge(node.kwargs, mate.kwargs, mates)
    return training


class _Flag:
    """`self.training` and its negation as nodes, made when first needed."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.nodes: dict[bool, fx.Node] = {}

    def node(self, when_training: bool) -> fx.Node:
        if not self.nodes:
            with self.graph.inserting_after(next(iter(self.graph.nodes))):
                self.nodes[True] = self.graph.create_node("get_attr", "training")
            with self.graph.inserting_after(self.nodes[True]):
                self.nodes[False] = self.graph.call_function(operator.not_, (self.nodes[True],))
        return self.nodes[when_training]

    def merge(self, one: Any, other: Any, mates: dict[fx.Node, fx.Node]) -> Any:
        """`one`, with every boolean that differs in `other` replaced by the flag."""
        if isinstance(one, fx.Node):
            same = mates.get(one) is other
        elif isinstance(one, bool) and isinstance(other, bool):
            return one if one is other else self.node(one)
        elif isinstance(one, slice) and isinstance(other, slice):
            ends = ((one.start, other.start), (one.stop, other.stop), (one.step, other.step))
            return slice(*(self.merge(a, b, mates) for a, b in ends))
        elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
            merged = [self.merge(a, b, mates) for a, b in zip(one, other, strict=True)]
            return merged if isinstance(one, list) else tuple(merged)
        elif isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
            return {key: self.merge(one[key], other[key], mates) for key in one}
        else:
            same = bool(one == other)
        if not same:
            raise Obstacle(DIFFERENT)
        return one
