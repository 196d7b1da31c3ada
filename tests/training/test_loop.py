"""The training loop: it learns, it repeats itself, and a stop leaves no trace."""

import gc
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from splitveil.check import RunError, UsageError
from splitveil.data import Augment
from splitveil.mechanisms import Gaussian
from splitveil.regularizers.base import Penalty, Progress, Regularizer, Step
from splitveil.split import Split
from splitveil.training import Recipe, Report, Term, Trained, Weight, accuracy, train
from worlds.small import small_images, small_split
from worlds.stopping import StopAfter, forget_settings


class Size(Regularizer):
    """Charges the mean square of the features, and learns their mean: the simplest regularizer that has a state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("epochs", torch.zeros(()))

    def forward(self, step: Step) -> Penalty:
        return Penalty((step.z - self.mean).square().mean(), {"mean": self.mean.clone()})

    def fit(self, step: Step) -> None:
        assert not step.z.requires_grad
        self.mean.lerp_(step.z.mean(), 0.1)

    def end_epoch(self, progress: Progress) -> None:
        self.epochs += 1


RECIPE = Recipe(epochs=4, batch_size=16, lr=0.1, augment=Augment(crop=1, flip=False), warmup_epochs=1)


def weights(split: Split) -> dict[str, Tensor]:
    return {**split.client.state_dict(), **{f"server.{k}": v for k, v in split.server.state_dict().items()}}


def run(recipe: Recipe = RECIPE, **options: Any) -> Trained:
    return train(small_split(), small_images(), recipe, device="cpu", **options)


def test_training_learns_and_keeps_the_best_epoch_of_the_selection_role() -> None:
    trained = run()
    best = max(r["selection_accuracy"] for r in trained.history)
    assert trained.selection_accuracy == best > 0.9
    assert accuracy(trained.split, small_images().selection, seed=RECIPE.seed) == best


def test_same_seed_same_weights_and_another_seed_other_weights() -> None:
    first, again, other = run(), run(), run(Recipe(epochs=4, batch_size=16, lr=0.1, seed=1))
    assert all(
        torch.equal(a, b) for a, b in zip(weights(first.split).values(), weights(again.split).values(), strict=True)
    )
    assert not all(
        torch.equal(a, b) for a, b in zip(weights(first.split).values(), weights(other.split).values(), strict=True)
    )


@pytest.mark.parametrize("apart", [{}, {"clip_norm": 0.1, "gradient_decay": 0.5}])
def test_a_run_interrupted_and_resumed_ends_in_the_same_weights(tmp_path: Path, apart: dict[str, float]) -> None:
    def term() -> list[Term]:
        return [Term("size", Size(), Weight(0.1, warmup_epochs=1), **apart)]

    whole = run(regularizers=term())
    stopped = run(regularizers=term(), out=tmp_path, watcher=StopAfter(2))
    assert stopped.stopped == "interrupted"
    resumed = run(regularizers=term(), out=tmp_path, resume=True)
    assert resumed.stopped is None
    for name, value in weights(whole.split).items():
        assert torch.equal(value, weights(resumed.split)[name]), name
    logged = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    for ours, theirs in zip(logged, whole.history, strict=True):
        assert {k: v for k, v in ours.items() if k != "seconds"} == {k: v for k, v in theirs.items() if k != "seconds"}


def test_an_epoch_leaves_no_tensor_behind() -> None:
    alive: list[int] = []

    class Counting(StopAfter):
        def epoch(self, report: Report, record: Mapping[str, Any]) -> None:
            gc.collect()
            alive.append(sum(issubclass(type(thing), Tensor) for thing in gc.get_objects()))

    recipe = Recipe(epochs=6, batch_size=16, lr=0.1)
    run(recipe, regularizers=[Term("size", Size(), Weight(0.1))], watcher=Counting(0))
    assert alive[-1] <= alive[1]  # fewer: what an earlier test left was freed meanwhile


def test_other_images_than_the_run_began_with_are_refused(tmp_path: Path) -> None:
    run(out=tmp_path, watcher=StopAfter(1))
    with pytest.raises(RunError, match="not those the run began with"):
        train(small_split(), small_images(seed=1), RECIPE, out=tmp_path, resume=True, device="cpu")


def test_a_checkpoint_of_another_network_is_refused_in_one_line(tmp_path: Path) -> None:
    run(out=tmp_path, watcher=StopAfter(1))
    with pytest.raises(UsageError, match=r'layers\.encoder\.body\.1\.name is "Identity" \(was "BatchNorm2d"\)'):
        train(small_split(batch_norm=False), small_images(), RECIPE, out=tmp_path, resume=True, device="cpu")
    forget_settings(tmp_path)
    with pytest.raises(RunError, match="does not fit this config") as caught:
        train(small_split(batch_norm=False), small_images(), RECIPE, out=tmp_path, resume=True, device="cpu")
    assert "\n" not in str(caught.value)


def test_a_penalty_reaches_the_encoder_and_is_logged() -> None:
    free, charged = run(), run(regularizers=[Term("size", Size(), Weight(5.0))])
    x = small_images().victims.images()
    assert charged.split.client.encode(x).var() < 0.5 * free.split.client.encode(x).var()
    assert charged.history[-1]["size/penalty"] > 0
    assert charged.history[-1]["size/weight"] == 5.0


def test_warm_up_charges_nothing() -> None:
    trained = run(regularizers=[Term("size", Size(), Weight(5.0, warmup_epochs=2))])
    assert ["size/penalty" in record for record in trained.history] == [False, False, True, True]


def test_weights_are_chosen_among_fully_charged_epochs_only() -> None:
    trained = run(regularizers=[Term("size", Size(), Weight(1e4, warmup_epochs=3))])
    assert max(r["selection_accuracy"] for r in trained.history[:3]) > trained.history[3]["selection_accuracy"]
    assert trained.best_epoch == 3


def test_under_an_accuracy_floor_the_latest_epoch_that_keeps_it_is_chosen() -> None:
    trained = run(regularizers=[Term("size", Size(), Weight(0.01), accuracy_floor=0.1)])
    assert trained.best_epoch == RECIPE.epochs - 1


def test_too_many_broken_penalties_stop_the_run() -> None:
    class Broken(Size):
        def broken_steps(self) -> Tensor:
            return torch.tensor(7)

    assert run(regularizers=[Term("b", Broken(), Weight(0.1))]).broken == {"b": 7}
    with pytest.raises(RunError, match="7 steps"):
        run(regularizers=[Term("b", Broken(), Weight(0.1), max_broken=6)])


@pytest.mark.parametrize("half", ["encoder", "head"])
def test_a_frozen_half_does_not_move(half: str) -> None:
    before = {k: v.clone() for k, v in weights(small_split()).items()}
    after = weights(run(Recipe(epochs=1, batch_size=16, freeze=half)).split)
    is_frozen = [name.startswith("server.") == (half == "head") for name in before]
    moved = [not torch.equal(before[name], after[name]) for name in before]
    assert not any(m for m, frozen in zip(moved, is_frozen, strict=True) if frozen)
    assert any(m for m, frozen in zip(moved, is_frozen, strict=True) if not frozen)


def test_a_time_budget_ends_cleanly_with_a_model() -> None:
    trained = run(Recipe(epochs=10_000, batch_size=16, time_budget=0.5))
    assert trained.stopped == "time budget"
    assert 0 < len(trained.history) < 10_000


def test_a_diverging_loss_stops_the_run_with_advice() -> None:
    split = small_split(batch_norm=False)
    with pytest.raises(RunError, match=r"training\.lr"):
        train(split, small_images(), Recipe(epochs=30, batch_size=16, lr=1e18, warmup_epochs=0), device="cpu")


def test_a_batch_larger_than_the_set_is_refused() -> None:
    with pytest.raises(UsageError, match="batch_size"):
        run(Recipe(batch_size=1000))


def test_bf16_and_channels_last_train_too() -> None:
    trained = run(Recipe(epochs=4, batch_size=16, lr=0.1, precision="bf16", channels_last=True))
    assert trained.selection_accuracy > 0.8
    assert trained.split.client.encode(small_images().victims.images()).dtype == torch.float32


def test_noise_in_training_is_the_mechanisms(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    class Spy(Size):
        def forward(self, step: Step) -> Penalty:
            seen.append(float((step.z_sent - step.z).detach().std()))
            assert step.noise_std == 0.3
            return super().forward(step)

    split = small_split(mechanism=Gaussian(std=0.3))
    train(
        split,
        small_images(),
        Recipe(epochs=2, batch_size=32),
        regularizers=[Term("spy", Spy(), Weight(0.0001))],
        device="cpu",
    )
    assert seen
    assert all(abs(s - 0.3) < 0.03 for s in seen)
    assert len(set(seen)) == len(seen)
