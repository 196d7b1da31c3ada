"""Every surrogate in the training loop: it is charged, it protects, and a stop leaves no trace."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from references.surrogates import MAKERS, make
from splitveil.mechanisms import Gaussian
from splitveil.randomness import SeededSource
from splitveil.regularizers import entropy
from splitveil.split import Split
from splitveil.training import Recipe, Term, Trained, Weight, train
from worlds.small import small_images, small_split
from worlds.stopping import StopAfter

RECIPE = Recipe(epochs=4, batch_size=24, lr=0.05, warmup_epochs=0)


def _run(name: str, *, weight: float = 0.5, **options: Any) -> Trained:
    terms = [Term(name, make(name), Weight(weight, warmup_epochs=1))]
    return train(small_split(), small_images(), RECIPE, device="cpu", regularizers=terms, **options)


def _weights(split: Split) -> list[Tensor]:
    return [*split.client.state_dict().values(), *split.server.state_dict().values()]


@pytest.mark.parametrize("name", MAKERS)
def test_a_stopped_and_resumed_run_ends_in_the_same_weights(name: str, tmp_path: Path) -> None:
    whole = _run(name, out=tmp_path / "whole")
    stopped = _run(name, out=tmp_path / "parts", watcher=StopAfter(2))
    assert stopped.stopped == "interrupted"
    resumed = _run(name, out=tmp_path / "parts", resume=True)
    assert resumed.stopped is None
    assert all(torch.equal(a, b) for a, b in zip(_weights(whole.split), _weights(resumed.split), strict=True))
    untold = ("seconds",)
    for a, b in zip(whole.history, resumed.history, strict=True):
        assert {k: v for k, v in a.items() if k not in untold} == {k: v for k, v in b.items() if k not in untold}


def test_the_gauges_of_a_surrogate_reach_the_history() -> None:
    surrogate = entropy.kmeans(n_groups=2)
    surrogate.meter.gauge_every = 1  # epochs here have four steps
    terms = [Term("kmeans", surrogate, Weight(0.5))]
    shown = train(small_split(), small_images(), RECIPE, device="cpu", regularizers=terms).history[-1]
    for gauge in ("penalty", "S", "I_r", "P", "L", "charged", "intra_mse", "effective_members", "over_hinge", "shut"):
        assert isinstance(shown[f"kmeans/{gauge}"], float)
    assert len(shown["kmeans/spread"]) == 3
    assert len(shown["kmeans/slot_mass"]) == 2


@pytest.mark.parametrize("name", ["plain", "kmeans", "gated-pooling", "slots", "mixture-prior", "correlated"])
def test_a_charged_encoder_spreads_its_classes_less(name: str) -> None:
    free = train(small_split(mechanism=Gaussian(std=0.1)), small_images(), RECIPE, device="cpu").split
    assert _spread(_run(name, weight=3.0).split) < 0.6 * _spread(free)


def _spread(split: Split) -> float:
    """Mean variance within a class of fresh images' features."""
    part = small_images().victims
    with torch.no_grad():
        split.eval()
        z = split.client.encode(part.images()).flatten(1)
        assert split.client(part.images(), source=SeededSource(0)).shape[0] == len(z)
    return sum(float(z[part.labels == c].var(0, unbiased=False).mean()) for c in range(3)) / 3
