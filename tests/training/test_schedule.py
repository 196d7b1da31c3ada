"""Learning rate and weights as functions of progress."""

import math

import pytest

from splitveil.check import UsageError
from splitveil.regularizers.base import Progress
from splitveil.training import Recipe, Weight, learning_rate


def at(epoch: int, *, lr: float = 0.1) -> Progress:
    return Progress(seed=0, epoch=epoch, step=0, n_epochs=10, lr=lr, base_lr=0.1, selection_accuracy=None)


def rate(recipe: Recipe, step: int) -> float:
    return learning_rate(recipe, step=step, steps_per_epoch=10)


def test_cosine_falls_from_base_to_zero_along_half_a_wave() -> None:
    recipe = Recipe(epochs=10, lr=0.4, warmup_epochs=0, schedule="cosine")
    assert rate(recipe, 0) == 0.4
    assert rate(recipe, 50) == pytest.approx(0.2)
    assert rate(recipe, 99) == pytest.approx(0.4 * (1 + math.cos(math.pi * 0.99)) / 2)


def test_warm_up_rises_linearly_and_never_starts_at_zero() -> None:
    recipe = Recipe(epochs=10, lr=0.4, warmup_epochs=2, schedule="constant")
    assert [rate(recipe, s) for s in (0, 9, 19, 20)] == pytest.approx([0.02, 0.2, 0.4, 0.4])


def test_multistep_divides_by_ten_after_each_milestone() -> None:
    recipe = Recipe(epochs=10, lr=1.0, warmup_epochs=0, schedule="multistep", milestones=(0.5, 0.8))
    assert [rate(recipe, s) for s in (49, 50, 79, 80)] == pytest.approx([1.0, 0.1, 0.1, 0.01])


@pytest.mark.parametrize("shape", ["constant", "constant_step"])
def test_weight_is_zero_in_warm_up_and_lambda_after(shape: str) -> None:
    weight = Weight(0.3, warmup_epochs=3, shape=shape)
    assert [weight(at(e)) for e in (0, 2, 3, 9)] == [0.0, 0.0, 0.3, 0.3]


def test_constant_step_keeps_weight_times_rate_constant() -> None:
    weight = Weight(0.3, shape="constant_step")
    assert weight(at(0, lr=0.01)) * 0.01 == pytest.approx(0.3 * 0.1)


def test_cosine_weight_is_half_way_at_half_the_ramp_and_stays_at_lambda() -> None:
    weight = Weight(2.0, shape="cosine", ramp_epochs=4)
    assert [weight(at(e)) for e in (1, 3, 8)] == pytest.approx([1.0, 2.0, 2.0])


def test_a_ramp_without_length_is_refused() -> None:
    with pytest.raises(UsageError, match="ramp_epochs"):
        Weight(1.0, shape="ramp")
