"""When to stop, and where to compute."""

import signal

import pytest
import torch

from splitveil.check import UsageError
from splitveil.training import find_device
from splitveil.training.watch import StopWhen


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_the_first_interrupt_is_remembered_and_the_second_raised(first: signal.Signals) -> None:
    with StopWhen(None) as stop:
        assert stop.reason() is None
        signal.raise_signal(first)
        assert stop.reason() == "interrupted"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_the_budget_is_a_reason_once_it_is_spent() -> None:
    with StopWhen(1e-9) as stop:
        assert stop.reason() == "time budget"
    with StopWhen(1e9) as stop:
        assert stop.reason() is None


@pytest.mark.parametrize("name", ["cuda:99", "tpu", "nonsense:1"])
def test_a_device_that_is_not_here_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(UsageError, match=r"it has: cpu"):
        find_device(name)


def test_auto_finds_a_device() -> None:
    assert find_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
