import math
from typing import Any

import torch
from torch import Tensor, nn

from worlds.loading import ROOT, load

EXAMPLE = "examples/plain_loop.py"


def _example() -> Any:
    return load(EXAMPLE)


def test_the_plain_loop_cuts_the_leak_and_keeps_the_classes_apart() -> None:
    module = _example()
    free, _ = module.main(0.0)
    leak, accuracy = module.main(3.0)
    assert leak < 0.7 * free
    assert accuracy > 0.95


def test_what_it_reports_is_of_images_that_trained_nothing() -> None:
    """On one Gaussian a class the truth is known: the held-out number is not below it, and not far above."""
    module = _example()
    torch.manual_seed(1)

    class Still(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 0.2 * torch.randn(len(x), 16)

    leak, _ = module.held_out(Still(), nn.Linear(16, 2))
    truth = 0.5 * math.log(1 + 0.2**2 / module.STD**2)
    assert truth < leak < 1.05 * truth


def test_it_is_short_and_never_touches_the_trainer() -> None:
    text = (ROOT / EXAMPLE).read_text()
    assert "splitveil.training" not in text
    assert len(text.splitlines()) < 80
