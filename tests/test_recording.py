"""A recorded pass leaves torch's settings as they were."""

import pytest
import torch
from torch import nn

from splitveil.recording import recorded


def is_warning() -> bool:
    return torch._C._warn_on_accumulate_grad_stream_mismatch()


def test_nothing_is_recorded_on_a_cpu():
    network = nn.Linear(2, 1)
    forward = network.forward
    with recorded(network, (torch.zeros(1, 2),), bfloat16=False):
        assert network.forward == forward
        assert is_warning()


@pytest.mark.parametrize("before", [True, False])
def test_a_warning_is_off_while_it_is_replayed_and_then_as_it_was(before, monkeypatch):
    monkeypatch.setattr("splitveil.recording._record", lambda *arguments, **options: None)
    warn = torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch
    warn(before)
    try:
        with recorded(Elsewhere(), (torch.zeros(1),), bfloat16=False):
            assert not is_warning()
        assert is_warning() is before
    finally:
        warn(True)


class Elsewhere(nn.Module):
    """Says that it is on a GPU."""

    def parameters(self, recurse: bool = True):
        yield type("Weight", (), {"device": torch.device("cuda")})()
