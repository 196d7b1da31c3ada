"""Where a module is, and the mode it is left in."""

import torch
from torch import nn

from splitveil.mechanisms import Identity
from splitveil.split import Client, Server, Split, device_of, evaluating


class Counting(nn.Module):
    """A buffer and no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1, device="meta"))


def test_a_buffer_tells_where_a_module_is() -> None:
    assert device_of(Counting()) == torch.device("meta")
    assert device_of(nn.Flatten()) is None


def test_a_split_is_where_either_half_is() -> None:
    nowhere, there = nn.Flatten(), nn.Linear(1, 1, device="meta")
    for encoder, head in ((nowhere, there), (there, nowhere)):
        assert Split(Client(encoder, Identity()), Server(head)).device == torch.device("meta")
    assert Split(Client(nowhere, Identity()), Server(nowhere)).device == torch.device("cpu")


def test_each_part_is_left_in_its_own_mode() -> None:
    network = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(1)).train()
    network[1].eval()
    with evaluating(network):
        assert not any(part.training for part in network.modules())
    assert [part.training for part in network] == [True, False]
