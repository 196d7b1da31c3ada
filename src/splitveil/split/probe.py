"""Try a module on an example: in evaluation mode, without gradients, and leaving every flag as it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeGuard

import torch
from torch import Tensor, nn

from splitveil.check import UsageError
from splitveil.split.obstacle import PICK, Obstacle


def features(encoder: nn.Module, example: Tensor) -> Tensor:
    """What the encoder makes of the example, if it can be sent: floats, one row a sample."""
    z = _run(encoder, example)
    if not is_features(z, len(example)):
        raise Obstacle(f"its output is {_say(z)}, not a tensor of floats with one row a sample")
    return z


def check_logits(head: nn.Module, z: Tensor) -> None:
    """See that the rest of the model answers with one row of class scores a sample."""
    logits = _run(head, z)
    if not (is_features(logits, len(z)) and logits.ndim == 2):
        raise Obstacle(f"the model's output is {_say(logits)}, not a tensor of class scores; {PICK}")


def named_features(model: nn.Module, example: Tensor) -> set[str]:
    """The submodules whose every output on the way of the example could be sent."""
    good: set[str] = set()
    bad: set[str] = set()
    hooks = [
        module.register_forward_hook(
            lambda _module, _inputs, output, name=name: (good if is_features(output, len(example)) else bad).add(name)
        )
        for name, module in model.named_modules()
    ]
    try:
        _run(model, example)
    finally:
        for hook in hooks:
            hook.remove()
    return good - bad


def is_features(value: object, n_samples: int) -> TypeGuard[Tensor]:
    """Whether the value is a floating-point tensor with one row a sample."""
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim >= 2 and len(value) == n_samples


def _say(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _run(module: nn.Module, example: Tensor) -> object:
    first = next(module.parameters(), None)
    placed = example if first is None else example.to(first.device, first.dtype)
    try:
        with evaluating(module), torch.no_grad():
            return module(placed)
    except UsageError:
        raise
    except Exception as error:  # whatever a user's forward raises
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        shape = tuple(example.shape[1:])
        raise UsageError(f"the model does not take images of shape {shape}: {reason}") from error


def device_of(module: nn.Module) -> torch.device | None:
    """Where its weights and other numbers are; None where it has none.

    >>> device_of(nn.Linear(2, 1)), device_of(nn.ReLU())
    (device(type='cpu'), None)
    """
    return next((value.device for value in module.state_dict().values()), None)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards every submodule is in the mode it was in."""
    was_training = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in was_training:
            part.training = mode
