"""Means of gauges."""

import torch

from splitveil.training.gauges import Gauges


def test_means_are_over_steps_and_leave_unknown_entries_out() -> None:
    gauges = Gauges()
    gauges.add({"s": torch.tensor(1.0), "v": torch.tensor([1.0, float("nan")])})
    gauges.fold()
    gauges.add({"s": torch.tensor(3.0), "v": torch.tensor([3.0, 5.0])})
    assert gauges.means() == {"s": 2.0, "v": [2.0, 5.0]}


def test_restored_gauges_go_on() -> None:
    first, second = Gauges(), Gauges()
    first.add({"s": torch.tensor(1.0)})
    second.restore(first.tensors(), torch.device("cpu"))
    second.add({"s": torch.tensor(4.0)})
    assert second.means() == {"s": 2.5}


def test_an_infinite_value_is_shown_and_not_hidden() -> None:
    gauges = Gauges()
    gauges.add({"s": torch.tensor(float("inf"))})
    assert gauges.means() == {"s": float("inf")}
