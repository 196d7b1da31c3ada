import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from references.steps import clouds, make_step
from splitveil.check import UsageError
from splitveil.regularizers import entropy
from splitveil.regularizers.base import Progress
from splitveil.regularizers.entropy import KeepAccuracy


def _after(accuracy: float | None) -> Progress:
    return Progress(0, 3, 9, 10, 0.1, 0.1, accuracy)


@given(accuracies=st.lists(st.floats(0, 1), max_size=30))
def test_strength_follows_the_accuracy_within_its_limits(accuracies: list[float]) -> None:
    keep = KeepAccuracy(entropy.plain(), floor=0.8, least=0.1, most=10.0)
    for accuracy in accuracies:
        before = keep.strength
        keep.end_epoch(_after(accuracy))
        assert 0.1 * (1 - 1e-8) <= keep.strength <= 10.0 * (1 + 1e-8)
        assert keep.strength >= before * (1 - 1e-9) if accuracy >= 0.8 else keep.strength <= before * (1 + 1e-9)


def test_it_settles_at_the_floor_of_a_world_where_strength_costs_accuracy() -> None:
    keep = KeepAccuracy(entropy.plain(), floor=0.86)
    accuracy = 0.9
    for _ in range(60):
        keep.end_epoch(_after(accuracy))
        accuracy = 0.9 - 0.02 * keep.strength
    assert accuracy == pytest.approx(0.86, abs=0.003)


def test_the_loss_is_multiplied_and_the_strength_shown() -> None:
    z, y = clouds(20, 4, 2)
    inner = entropy.plain()
    keep = KeepAccuracy(inner, floor=0.5, start=3.0)
    penalty = keep(make_step(z, y, n_classes=2))
    torch.testing.assert_close(penalty.loss, 3 * inner(make_step(z, y, n_classes=2)).loss, rtol=1e-8, atol=0)
    assert float(penalty.gauges["strength"]) == pytest.approx(3.0)
    keep.float()
    assert keep.log_strength.dtype == torch.long


def test_nothing_moves_before_an_accuracy_is_known() -> None:
    keep = KeepAccuracy(entropy.plain(), floor=0.5)
    keep.end_epoch(_after(None))
    assert keep.strength == 1.0


def test_a_start_outside_the_limits_is_refused() -> None:
    with pytest.raises(UsageError, match="start must lie between"):
        KeepAccuracy(entropy.plain(), floor=0.5, start=5.0, most=2.0)
