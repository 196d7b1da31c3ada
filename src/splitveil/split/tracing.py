"""The graph of a module, opened only on the way to a cut.

Only the root and the modules around the cut are traced with torch.fx; every other submodule stays one opaque call, so
control flow, dropout and batch statistics inside them are untouched, and few models are beyond it.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from splitveil.split.modes import unify
from splitveil.split.obstacle import Obstacle

QUESTIONS = (getattr, operator.getitem, operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
CONSTANT = "_tensor_constant"  # torch.fx leaves tensors made in forward on the model under this name


@dataclass(frozen=True)
class Traced:
    """A module's graph, and the tensors its forward makes from nothing."""

    graph: fx.Graph
    constants: dict[str, Tensor]


class _Opening(fx.Tracer):
    """Traces the root and the modules named in `opened`; calls all others."""

    proxy_buffer_attributes = True  # arithmetic on buffers is recorded, not done once and frozen

    def __init__(self, opened: Sequence[str]) -> None:
        super().__init__()
        self.opened = frozenset(opened)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name not in self.opened

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Answer one question about the input without seeing it: its dtype is the model's."""
        answer = _same_dtype(obj.node, of_model=next(self.root.parameters(), torch.empty(0)).dtype)
        return super().to_bool(obj) if answer is None else answer

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        return root_fn, [self.root, self.create_proxy("placeholder", "x", (), {})]  # other arguments keep defaults


def trace(model: nn.Module, opened: Sequence[str]) -> Traced:
    """The graph from the model's one input to its output with these submodules opened, right in both modes."""
    through = [model, *(model.get_submodule(name) for name in opened)]
    was_training = [module.training for module in through]
    try:
        for module in through:
            module.training = True
        training = _trace_once(model, opened)
        for module in through:
            module.training = False
        evaluation = _trace_once(model, opened)
    finally:
        for module, mode in zip(through, was_training, strict=True):
            module.training = mode
    graph = _pruned(unify(training.graph, evaluation.graph))
    for name, constant in training.constants.items():
        if not torch.equal(constant, evaluation.constants[name]):
            raise Obstacle("the forward pass around it makes a tensor that differs from call to call")
    return Traced(graph, training.constants)


def _trace_once(model: nn.Module, opened: Sequence[str]) -> Traced:
    before = set(vars(model))
    try:
        graph = _Opening(opened).trace(model)
    except Exception as error:  # whatever a forward raises when its input is symbolic
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise Obstacle(f"the forward pass around it cannot be traced ({reason})") from error
    finally:
        left = [name for name in vars(model) if name.startswith(CONSTANT) and name not in before]
        constants = {name: vars(model).pop(name) for name in left}  # the model is the user's: leave it as it was
    return Traced(graph, constants)


def _same_dtype(question: fx.Node, *, of_model: torch.dtype) -> bool | None:
    """The answer to `a.dtype == b.dtype` or `!=`, or None to any other question."""
    if question.target not in (operator.eq, operator.ne):
        return None
    dtypes = [of_model if _is_dtype(side) else side for side in question.args]
    if not all(isinstance(dtype, torch.dtype) for dtype in dtypes):
        return None
    return (dtypes[0] == dtypes[1]) is (question.target is operator.eq)


def _is_dtype(side: object) -> bool:
    return isinstance(side, fx.Node) and side.target is getattr and side.args[1] == "dtype"


def _pruned(graph: fx.Graph) -> fx.Graph:
    """The graph without questions whose answers nothing uses: they would tie weights to the side that asked."""
    for node in reversed(list(graph.nodes)):
        if not node.users and (node.op == "get_attr" or node.target in QUESTIONS):
            graph.erase_node(node)
    return graph
