"""When to stop."""

import signal
from collections.abc import Iterator

import pytest

from splitveil.training.watch import StopWhen


@pytest.fixture(autouse=True)
def _usual_interrupt() -> Iterator[None]:
    """Whoever starts the tests in the background may have told them to ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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
