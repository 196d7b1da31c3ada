"""A client is known by all that its layers hold and do, and by nothing else."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from splitveil.attacks import oracle_of
from splitveil.evaluation.fingerprints import client_fingerprint, head_fingerprint
from splitveil.mechanisms import Gaussian, Identity, Mechanism
from splitveil.split import Client
from worlds.evaluations import ROLES, WORLD


class Layer(nn.Module):
    """A layer whose settings neither its weights nor its words tell."""

    def __init__(self, setting: object) -> None:
        super().__init__()
        self.setting = setting

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


class Doubled(Layer):
    """The same name of everything, and another answer."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x.flatten(1)


Doubled.__qualname__ = Layer.__qualname__
Doubled.forward.__qualname__ = Layer.forward.__qualname__


def name(encoder: nn.Module, mechanism: Mechanism | None = None) -> str:
    return client_fingerprint(oracle_of(Client(encoder, mechanism or Identity())), ROLES)


def times(gain: float) -> Callable[[Tensor], Tensor]:
    return lambda x: gain * x


def twice(step: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def again(x: Tensor, left: int = 2) -> Tensor:
        return step(x) if left == 1 else again(step(x), left - 1)  # closes over itself

    return again


@pytest.mark.parametrize(
    ("make", "one", "other"),
    [
        (lambda gain: gain, 2.0, 3.0),
        (lambda gain: {"gain": gain}, 2.0, 3.0),
        (lambda gain: (1, [gain]), 2.0, 3.0),
        (lambda gain: {gain}, 2.0, 3.0),
        (lambda gain: np.array([gain]), 2.0, 3.0),
        (lambda gain: torch.tensor([gain]), 2.0, 3.0),
        (lambda step: step, torch.relu, torch.tanh),
        (times, 2.0, 3.0),
        (lambda gain: partial(torch.mul, other=gain), 2.0, 3.0),
        (lambda step: twice(step), torch.relu, torch.tanh),
    ],
    ids=["number", "dict", "list", "set", "array", "tensor", "function", "closure", "partial", "recursive"],
)
def test_a_setting_that_no_weight_tells(make, one, other):
    assert name(Layer(make(one))) == name(Layer(make(one))) != name(Layer(make(other)))


def test_what_a_layer_computes():
    assert name(Layer(1)) != name(Doubled(1))


def test_a_hook():
    hooked, same = Layer(1), Layer(1)
    hooked.register_forward_hook(lambda module, x, z: 3 * z)
    assert name(hooked) != name(same)


def test_numbers_that_are_not_saved():
    layers = [Layer(1) for _ in range(3)]
    for layer, value in zip(layers, (1.0, 1.0, 2.0), strict=True):
        layer.register_buffer("shift", torch.tensor(value), persistent=False)
    assert name(layers[0]) == name(layers[1]) != name(layers[2])


def test_heads_of_attention():
    halves = [nn.MultiheadAttention(4, heads) for heads in (1, 4)]
    halves[1].load_state_dict(halves[0].state_dict())
    assert len({head_fingerprint(half) for half in halves}) == 2


def test_weights_and_noise():
    assert name(Layer(1), Gaussian(std=0.1)) != name(Layer(1), Gaussian(std=0.2))
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    assert head_fingerprint(one) != head_fingerprint(other)
    other.load_state_dict(one.state_dict())
    assert head_fingerprint(one) == head_fingerprint(other)


def test_mode_and_gradients_do_not_matter():
    client = WORLD.client()
    before = client_fingerprint(oracle_of(client), ROLES)
    assert client_fingerprint(oracle_of(client.train().requires_grad_(False)), ROLES) == before
