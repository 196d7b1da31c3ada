"""Cutting a graph after one call t.

    server = everything that depends on t            client = everything else

No value of the client but t may be needed by the server: a skip connection would cross the wire. Two things may be read
on both sides, because they tell nothing about x: the model's own constants and the batch size.
"""

from operator import getitem
from typing import Any

from torch import fx, nn

from splitveil.split.obstacle import PICK, Obstacle
from splitveil.split.tracing import Traced


def find(graph: fx.Graph, name: str) -> fx.Node:
    """The one call of the named module, if the graph can be cut after it."""
    calls = [node for node in graph.nodes if node.op == "call_module" and node.target == name]
    if not calls:
        raise Obstacle("the forward pass does not call it")
    if len(calls) > 1:
        raise Obstacle(f"the forward pass calls it {len(calls)} times", also_inside=True)
    call: fx.Node = calls[0]
    result = graph.output_node().args[0]
    if not isinstance(result, fx.Node):
        kind = type(result).__name__.removeprefix("immutable_")  # as torch.fx records containers
        raise Obstacle(f"the model's output is a {kind}, not a tensor; {PICK}")
    server = _dependents(call)
    if graph.output_node() not in server:
        raise Obstacle("the output does not depend on it")
    known = server | _free(graph) | {call}
    for node in (node for node in graph.nodes if node in server):
        for value in node.all_input_nodes:
            if value not in known:
                reason = f"a skip connection crosses the cut: {_say(node)} also needs {_say(value)}"
                raise Obstacle(reason, also_inside=True)
    return call


def halves(model: nn.Module, traced: Traced, call: fx.Node) -> tuple[nn.Module, nn.Module]:
    """Two modules, x → z and z → output, that hold the model's own submodules under their own names."""
    if traced.graph.output_node().args[0] is call:
        return model, nn.Sequential()
    server, free = _dependents(call), _free(traced.graph)
    front, back = fx.Graph(), fx.Graph()
    on_client: dict[fx.Node, fx.Node] = {}
    on_server = {call: back.placeholder("z")}

    def client(node: fx.Node) -> fx.Node:
        if node not in on_client:
            on_client[node] = front.node_copy(node, client)
        return on_client[node]

    def side(node: fx.Node) -> fx.Node:
        if node not in on_server:
            is_batch = _is_batch_size(node)
            on_server[node] = back.call_method("size", (on_server[call], 0)) if is_batch else back.node_copy(node, side)
        return on_server[node]

    for node in traced.graph.nodes:
        if node in server:
            side(node)
        elif node not in free:
            client(node)
    front.output(on_client[call])
    return _module(model, traced, front, "Encoder"), _module(model, traced, back, "Head")


def _module(model: nn.Module, traced: Traced, graph: fx.Graph, name: str) -> fx.GraphModule:
    """The graph as a module over the model's own submodules, parameters and buffers: the same objects."""
    held: dict[str, Any] = {}
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr"):
            held[node.target] = traced.constants.get(node.target, _attribute(model, node.target))
    module = fx.GraphModule(held, graph, name)
    module.training = model.training
    return module


def _attribute(model: nn.Module, path: str) -> Any:
    owner, _, name = path.rpartition(".")
    return getattr(model.get_submodule(owner), name, None)


def _dependents(node: fx.Node) -> set[fx.Node]:
    """Everything that depends on the node."""
    found: set[fx.Node] = set()
    reached = [node]
    while reached:
        new = [user for user in reached.pop().users if user not in found]
        found.update(new)
        reached += new
    return found


def _free(graph: fx.Graph) -> set[fx.Node]:
    """The values that follow from the model's constants and the batch size alone."""
    free: set[fx.Node] = set()
    for node in graph.nodes:
        inputs = node.all_input_nodes
        if node.op == "get_attr" or _is_batch_size(node) or (inputs and free.issuperset(inputs)):
            free.add(node)
    return free


def _is_batch_size(node: fx.Node) -> bool:
    """Whether this is x.size(0), x.size()[0] or x.shape[0]."""
    match node.op, node.target, node.args:
        case "call_method", "size", (fx.Node(op="placeholder"), 0):
            return True
        case "call_function", target, (fx.Node() as shape, 0) if target is getitem:
            return _is_shape_of_input(shape)
    return False


def _is_shape_of_input(node: fx.Node) -> bool:
    match node.op, node.target, node.args:
        case "call_function", target, (fx.Node(op="placeholder"), "shape") if target is getattr:
            return True
        case "call_method", "size", (fx.Node(op="placeholder"),):
            return True
    return False


def _say(node: fx.Node) -> str:
    """A node in words a reader of the model knows."""
    if node.op in ("placeholder", "output"):
        return {"placeholder": "the input", "output": "the output"}[node.op]
    return repr(node.target if isinstance(node.target, str) else getattr(node.target, "__name__", node.name))
