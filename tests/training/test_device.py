"""Where a run computes, and that it is alone unless torchrun says otherwise."""

import pytest
import torch
from torch import nn

from splitveil.check import UsageError
from splitveil.training import find_device, n_ranks, this_rank
from splitveil.training.device import open_place


@pytest.mark.parametrize("name", ["cuda:99", "tpu", "nonsense:1"])
def test_a_device_that_is_not_here_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(UsageError, match=r"it has: cpu"):
        find_device(name)


def test_auto_finds_a_device() -> None:
    assert find_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.usefixtures("two_gpus")
def test_every_rank_takes_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_device("auto") == torch.device("cuda")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert find_device("auto") == find_device("cuda") == torch.device("cuda:1")


@pytest.mark.usefixtures("two_gpus")
def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UsageError, match="use --nproc-per-node 2"):
        find_device("auto")


def test_ranks_are_those_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (this_rank(), n_ranks()) == (0, 1)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert (this_rank(), n_ranks()) == (3, 8)


def test_alone_nothing_is_wrapped_or_communicated() -> None:
    place, module = open_place("cpu", "float32"), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    assert place.set_up(module, optimizer) == (module, optimizer)
    values = torch.arange(3.0)
    assert place.total(values) is place.mean(values) is values
    assert place.highest(-4) == -4


def test_layers_that_draw_repeat_themselves() -> None:
    place, layer, x = open_place("cpu", "float32"), nn.Dropout(), torch.ones(100)
    place.seed_layers(1)
    first = layer(x)
    place.seed_layers(2)
    other = layer(x)
    place.seed_layers(1)
    assert torch.equal(layer(x), first)
    assert not torch.equal(other, first)


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bf16", torch.bfloat16)])
def test_autocast_is_that_of_the_precision(precision: str, dtype: torch.dtype) -> None:
    with open_place("cpu", precision).autocast():
        assert nn.Linear(2, 2)(torch.ones(1, 2)).dtype == dtype
