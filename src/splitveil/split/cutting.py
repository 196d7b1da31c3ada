"""Cut any module after a named submodule.

    encoder = bottleneck ∘ body ∘ normalize          head = rest ∘ expand          rest(body(x)) = model(x), bit for bit

The halves hold the model's own modules: training the halves trains the model, and weights loaded into the model are in
the halves.
"""

from torch import Tensor, nn

from splitveil.check import UsageError, nearest
from splitveil.mechanisms import Identity, Mechanism
from splitveil.split import probe
from splitveil.split.bottleneck import Bottleneck
from splitveil.split.halves import Client, Server, Split
from splitveil.split.halving import Traces, halve
from splitveil.split.normalize import Normalize
from splitveil.split.obstacle import Obstacle

MOST_NAMES = 40  # listed in one error message


def cut(
    model: nn.Module,
    *,
    after: str,
    bottleneck: Bottleneck | None = None,
    mechanism: Mechanism | None = None,
    normalize: Normalize | None = None,
    example: Tensor | None = None,
) -> Split:
    """Cut `model` after its submodule `after` into a client and a server.

    `example` is a small batch of images: a bottleneck needs it to know the shape of the features, and with it the cut
    is tried out here and not in the first training step. Without `mechanism` features are sent as they are.

    Guarantees: without bottleneck and normalize, head(encoder(x)) equals model(x) bit for bit in both modes; parameters
    are the model's own objects under the model's own names; a model that cannot be cut there is a `UsageError` that
    says why and lists the names where it can.

    >>> cut(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), after="1").server.head.body
    Sequential(
      (2): Linear(in_features=3, out_features=2, bias=True)
    )
    """
    if bottleneck is not None and example is None:
        raise UsageError("a bottleneck needs `example`, a small batch of images, to know the shape of the features")
    try:
        front, back = halve(model, _known(model, after))
        z = None if example is None else probe.features(_stack(normalize=normalize, body=front), example)
        if z is not None:
            probe.check_logits(back, z)
    except Obstacle as obstacle:
        raise UsageError(_explain(model, after, obstacle, example)) from obstacle
    squeeze, expand = (None, _Copy()) if bottleneck is None or z is None else bottleneck.build(z)
    encoder = _stack(normalize=normalize, body=front, bottleneck=squeeze)
    return Split(Client(encoder, mechanism or Identity()), Server(_stack(expand=expand, body=back)))


def names_to_cut(model: nn.Module, example: Tensor | None = None) -> list[str]:
    """The submodules after which `cut` can cut, in the model's order; an `example` rules out those that send no tensor.

    >>> names_to_cut(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    ['0', '1']
    """
    traces: Traces = {}
    tried = None if example is None else probe.named_features(model, example)
    names: list[str] = []
    blocked: tuple[str, ...] = ()  # beginnings of names that need no try
    for name, _ in model.named_modules():
        if not name or name.startswith(blocked):
            continue
        try:
            halve(model, name, traces)
        except Obstacle as obstacle:
            blocked += (f"{name}.",) if obstacle.also_inside else ()
        else:
            names += [name] if tried is None or name in tried else []
    return names


class _Copy(nn.Module):
    """The head works on its own copy: an in-place layer at its start must not rewrite what was sent."""

    def forward(self, z: Tensor) -> Tensor:
        return z.clone()


def _stack(**layers: nn.Module | None) -> nn.Sequential:
    stack = nn.Sequential()
    for name, layer in layers.items():
        if layer is not None:
            stack.add_module(name, layer)
    return stack


def _known(model: nn.Module, name: str) -> str:
    names = [known for known, _ in model.named_modules(remove_duplicate=False)]
    if not name or name not in names:
        raise Obstacle(f"there is no such submodule{nearest(name, names)}")
    return name


def _explain(model: nn.Module, after: str, obstacle: Obstacle, example: Tensor | None) -> str:
    """One line: what was wanted, why not, and where else."""
    try:
        names = names_to_cut(model, example)
    except UsageError:  # the example does not fit; what can be said without it is still of use
        names = names_to_cut(model)
    more = f", … ({len(names) - MOST_NAMES} more)" if len(names) > MOST_NAMES else ""
    where = f"it can be cut after: {', '.join(names[:MOST_NAMES])}{more}" if names else "it can be cut nowhere"
    return f"cannot cut {type(model).__name__} after {after!r}: {obstacle}; {where}"
