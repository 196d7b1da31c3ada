"""Take a module apart after a named submodule: slice what is a plain Sequential, cut the graph of what is not.

model(x) = back(front(x))
"""

from torch import nn

from splitveil.split import graph, sequential
from splitveil.split.obstacle import Obstacle
from splitveil.split.tracing import Traced, trace

Traces = dict[tuple[nn.Module, str], Traced | Obstacle]  # by the traced module and the deepest one opened in it


def halve(model: nn.Module, name: str, traces: Traces | None = None) -> tuple[nn.Module, nn.Module]:
    """Front and back of the model around the end of submodule `name`. `traces` are kept between calls on one model."""
    front, back = _halve(model, name.split("."), {} if traces is None else traces)
    if sequential.is_empty(back):
        raise Obstacle("nothing would be left for the server")
    both = {id(tensor) for tensor in _tensors(front).values()}
    shared = [key for key, tensor in _tensors(back).items() if id(tensor) in both]
    if shared:
        raise Obstacle(f"weights are used on both sides of it: {shared[0]}")
    return front, back


def _halve(module: nn.Module, path: list[str], traces: Traces) -> tuple[nn.Module, nn.Module]:
    _check_hooks(module)
    if not sequential.is_plain(module):
        return _halve_graph(module, path, traces)
    name, rest = path[0], path[1:]
    child = module.get_submodule(name)
    return sequential.around(module, name, _halve(child, rest, traces) if rest else (child, nn.Sequential()))


def _halve_graph(module: nn.Module, path: list[str], traces: Traces) -> tuple[nn.Module, nn.Module]:
    """Cut by the graph; the modules between `module` and the named one are opened."""
    opened = [".".join(path[:depth]) for depth in range(1, len(path))]
    for name in opened:
        _check_hooks(module.get_submodule(name))
    key = (module, ".".join(path[:-1]))
    if key not in traces:
        traces[key] = _trace_or_obstacle(module, opened)
    traced = traces[key]
    if isinstance(traced, Obstacle):
        raise traced
    target = module.get_submodule(".".join(path))
    names = {submodule: name for name, submodule in module.named_modules()}  # a module under two names has one here
    return graph.halves(module, traced, graph.find(traced.graph, names[target]))


def _trace_or_obstacle(module: nn.Module, opened: list[str]) -> Traced | Obstacle:
    try:
        return trace(module, opened)
    except Obstacle as obstacle:
        return obstacle


def _check_hooks(module: nn.Module) -> None:
    if module._forward_hooks or module._forward_pre_hooks:
        raise Obstacle(f"{type(module).__name__} has forward hooks, which would not run once it is taken apart")


def _tensors(module: nn.Module) -> dict[str, nn.Parameter]:
    return dict(module.named_parameters(remove_duplicate=False))
