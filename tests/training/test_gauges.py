"""Means of gauges."""

import pytest
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


def test_a_stop_between_two_folds_changes_no_digit() -> None:
    values = torch.rand(40, generator=torch.Generator().manual_seed(0))
    whole, parted, after = Gauges(), Gauges(), Gauges()
    for value in values:
        whole.add({"s": value})
    for value in values[:13]:
        parted.add({"s": value})
    after.restore(parted.tensors(), torch.device("cpu"))
    for value in values[13:]:
        after.add({"s": value})
    assert after.means() == whole.means()


def test_several_processes_give_the_mean_of_all_their_values() -> None:
    ranks = [Gauges(), Gauges()]
    for gauges, values in zip(ranks, ([1.0, 2.0], [6.0, float("nan")]), strict=True):
        for value in values:
            gauges.add({"s": torch.tensor(value), "v": torch.tensor([value, 1.0])})
    sent: list[torch.Tensor] = []
    ranks[1].everywhere(lambda mine: sent.append(mine) or mine)
    assert ranks[0].everywhere(lambda mine: mine + sent[0]).means() == {"s": 3.0, "v": [3.0, 1.0]}


@pytest.mark.parametrize("is_folded", [True, False])
def test_what_the_first_process_goes_on_with_counts_once(is_folded: bool) -> None:
    kept, first, second = Gauges(), Gauges(), Gauges()
    kept.add({"s": torch.tensor(4.0)})
    if is_folded:
        kept.fold()
    first.restore(kept.tensors(), torch.device("cpu"))
    second.restore(kept.tensors(), torch.device("cpu"), is_mine=False)
    second.add({"s": torch.tensor(6.0)})
    sent: list[torch.Tensor] = []
    second.everywhere(lambda mine: sent.append(mine) or mine)
    assert first.everywhere(lambda mine: mine + sent[0]).means() == {"s": 5.0}


def test_where_nan_counts_a_sum_shows_it() -> None:
    gauges = Gauges(keeps_nan=True)
    gauges.add({"loss": torch.tensor(1.0)})
    assert gauges.sum("loss") == 1.0
    gauges.add({"loss": torch.tensor(float("nan"))})
    assert gauges.sum("loss") != gauges.sum("loss")


def test_an_infinite_value_is_shown_and_not_hidden() -> None:
    gauges = Gauges()
    gauges.add({"s": torch.tensor(float("inf"))})
    assert gauges.means() == {"s": float("inf")}
