"""Peaks of a call whose allocations are known."""

from typing import Any

import pytest
import torch

from worlds.loading import load

CPU = torch.device("cpu")


@pytest.fixture
def allocated() -> Any:
    return load("benchmarks/allocated.py")


def _rising() -> None:
    first = torch.zeros(2**18)  # 1 MiB
    second = first + 1  # 2
    del first  # 1
    third = torch.zeros(2**19)  # 3
    del second, third


def test_a_peak_is_what_was_held_at_once(allocated: Any) -> None:
    before = torch.zeros(2**20)  # held before, so not counted
    assert allocated.peak_bytes(_rising, CPU) == pytest.approx(3 * allocated.MIB, rel=0.01)
    del before


def test_a_module_keeps_its_tensors_once_each(allocated: Any) -> None:
    module = torch.nn.Linear(256, 256, bias=False)
    module.register_buffer("again", module.weight.detach())  # the same memory
    module.plain = torch.zeros(64)
    assert allocated.kept_bytes(module, CPU) == 4 * (256 * 256 + 64)
