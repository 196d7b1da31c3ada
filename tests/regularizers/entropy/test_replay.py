"""A recorded step is the step itself, whatever the caller does in between. Recorded here without a GPU (tape.py)."""

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from references.steps import clouds, make_step
from references.surrogates import MAKERS, counted, make, wander
from references.tape import record_on_cpu
from splitveil.check import UsageError
from splitveil.regularizers import entropy
from splitveil.regularizers.base import Progress, Step
from splitveil.regularizers.entropy import MixturePrior, Surrogate
from splitveil.regularizers.entropy.meter import Meter
from splitveil.regularizers.entropy.replay import Inputs, Replay

AT = Progress(0, 0, 0, 1, 0.1, 0.1, None)
Own = Surrogate | MixturePrior


@pytest.fixture(autouse=True)
def _on_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    record_on_cpu(monkeypatch)


def _step(i: int, *, n: int = 24, shape: tuple[int, ...] = (6,), dtype: torch.dtype = torch.float64) -> Step:
    z, y = clouds(n, torch.Size(shape).numel(), 4, seed=i)
    return make_step(z.view(n, *shape).to(dtype).requires_grad_(), y, n_classes=4, step=i)


def _train(surrogate: Own, steps: list[Step]) -> list[Tensor]:
    seen = []
    for step in steps:
        surrogate.fit(replace(step, z=step.z.detach()))
        loss = surrogate(step).loss
        seen += [loss.detach(), *torch.autograd.grad(loss, step.z)]
    return seen


def _n_recorded(surrogate: Own) -> int:
    return len(surrogate.meter.replay._recordings)


@pytest.mark.parametrize("name", MAKERS)
def test_a_replayed_run_is_the_run_itself(name: str) -> None:
    outcomes, recorded = [], []
    for is_on in (True, False):
        regularizer = make(name)
        meters = [m for m in regularizer.modules() if isinstance(m, Meter)]
        for meter in meters:
            meter.replay.is_on &= is_on
        outcomes.append([*wander(regularizer), *counted(regularizer), *regularizer.state_dict().values()])
        recorded.append(sum(len(meter.replay._recordings) for meter in meters))
    assert recorded[1] == 0
    assert recorded[0] >= (1 if name == "correlated" else 2)
    for a, b in zip(*outcomes, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("vectors", "shape"),
    [("flatten", (2, 2, 3)), ("pool", (3, 2, 2)), ("tokens", (3, 4)), ("tokens", (4, 2, 2))],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_features_of_any_shape_and_precision_are_replayed(
    vectors: entropy.presets.How, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    outcomes = []
    for is_on in (True, False):
        surrogate = entropy.mixture_prior(n_groups=2, vectors=vectors)
        surrogate.meter.replay.is_on = is_on
        outcomes.append(_train(surrogate, [_step(i, shape=shape, dtype=dtype) for i in range(1, 8)]))
        assert _n_recorded(surrogate) == 2 * is_on
    for a, b in zip(*outcomes, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_features_in_another_memory_format_are_replayed_too() -> None:
    surrogate = entropy.plain()
    for i in range(1, 8):
        step = _step(i, shape=(2, 2, 3))
        other = step.z.detach().contiguous(memory_format=torch.channels_last if i % 2 else torch.contiguous_format)
        got = _train(surrogate, [replace(step, z=other.requires_grad_())])
        for a, b in zip(got, _train(entropy.plain(), [step]), strict=True):
            assert torch.equal(a, b)
    assert _n_recorded(surrogate) == 1


@pytest.mark.parametrize("memory", [torch.channels_last, torch.contiguous_format])
def test_a_gradient_lies_as_its_features_do(memory: torch.memory_format) -> None:
    surrogate = entropy.plain()
    for i in range(1, 7):  # called, then replayed
        step = _step(i, shape=(2, 2, 3))
        z = step.z.detach().contiguous(memory_format=memory).requires_grad_()
        _, slope = _train(surrogate, [replace(step, z=z)])
        assert slope.stride() == z.stride()
    assert _n_recorded(surrogate) == 1


@pytest.mark.parametrize("make_one", [entropy.plain, entropy.kmeans, entropy.gated_pooling, entropy.mixture_prior])
def test_a_replayed_step_copies_its_features_once(make_one: Callable[[], Own], monkeypatch: pytest.MonkeyPatch) -> None:
    surrogate = make_one()
    steps = [_step(2 * i + 2) for i in range(7)]  # even, for those that fit in every other; without gauges
    _train(surrogate, steps[:5])
    copies: list[Tensor] = []
    plain_copy = Tensor.copy_
    (inputs,) = surrogate.meter.replay._inputs.values()
    watched = {id(inputs.z), id(inputs.y)}

    def counted_copy(mine: Tensor, other: Tensor, *rest: bool) -> Tensor:
        copies.extend([mine] * (id(mine) in watched))
        return plain_copy(mine, other, *rest)

    monkeypatch.setattr(Tensor, "copy_", counted_copy)
    monkeypatch.setattr("references.tape.Tape.replay", lambda tape: None)
    _train(surrogate, steps[5:])
    assert len(copies) == 2 * 2


def test_a_gradient_outlives_the_next_replay() -> None:
    surrogate, fresh = entropy.plain(), entropy.plain()
    steps = [_step(i) for i in range(1, 9)]
    losses = [surrogate(step).loss for step in steps]
    kept = [loss.detach().clone() for loss in losses]
    for step, loss, value in zip(steps, losses, kept, strict=True):
        want = fresh(step).loss
        assert torch.equal(loss.detach(), value)
        assert torch.equal(value, want.detach())
        assert torch.equal(*torch.autograd.grad(loss, step.z), *torch.autograd.grad(want, step.z))
    assert _n_recorded(surrogate) == 1


def test_a_loaded_state_is_the_one_that_is_replayed() -> None:
    here, there = entropy.gated_pooling(hidden=8), entropy.gated_pooling(hidden=8)
    _train(here, [_step(2 * i) for i in range(8)])
    _train(there, [_step(50)])
    here.load_state_dict(there.state_dict(), assign=True)
    twin = entropy.gated_pooling(hidden=8)
    twin.load_state_dict(there.state_dict())
    for a, b in zip(*(_train(one, [_step(2 * i) for i in range(60, 68)]) for one in (here, twin)), strict=True):
        assert torch.equal(a, b)


def test_a_moved_module_is_recorded_anew() -> None:
    surrogate = entropy.gated_pooling(hidden=8)
    _train(surrogate, [_step(2 * i) for i in range(8)])
    assert _n_recorded(surrogate) > 0
    surrogate.to(torch.float32)
    assert _n_recorded(surrogate) == 0


def test_noise_is_asked_for_in_a_replayed_step_too() -> None:
    surrogate = entropy.plain()
    _train(surrogate, [_step(i) for i in range(1, 8)])
    with pytest.raises(UsageError, match="noise_std must be > 0"):
        surrogate(replace(_step(9), noise_std=0.0))
    loud, quiet = (surrogate(replace(_step(9), noise_std=std)).loss for std in (0.1, 0.2))
    assert float(loud.detach()) > float(quiet.detach())


def test_a_copy_starts_without_recordings() -> None:
    surrogate = entropy.plain()
    _train(surrogate, [_step(i) for i in range(1, 8)])
    assert _n_recorded(copy.deepcopy(surrogate)) == 0


def test_what_was_copied_is_taken_once_and_only_if_nothing_changed() -> None:
    z, y = torch.ones(3, 2), torch.zeros(3, dtype=torch.long)
    inputs = Inputs(z, y)

    def is_copied(*given: Tensor, at: Progress = AT) -> bool:
        inputs.z.zero_()
        inputs.take(*given, at)
        return bool(inputs.z.any())

    inputs.keep(z, y, AT)
    assert not is_copied(z.requires_grad_(), y)
    assert is_copied(z, y)  # the first time used it up
    for change in (
        lambda: (z, y, replace(AT, step=1)),
        lambda: (z.detach().clone(), y, AT),
        lambda: (z, y.clone(), AT),
        lambda: (z.detach().add_(1), y, AT),
        lambda: (z, y.add_(1), AT),
    ):
        inputs.keep(z, y, AT)
        *given, at = change()
        assert is_copied(*given, at=at)


def test_what_has_no_version_is_copied_again() -> None:
    with torch.inference_mode():
        z, y = torch.ones(3, 2), torch.zeros(3, dtype=torch.long)
    inputs = Inputs(z, y)
    inputs.keep(z, y, AT)
    inputs.z.zero_()
    inputs.take(z, y, AT)
    assert bool(inputs.z.all())


def test_recording_waits_for_warm_calls_and_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    replay, z = Replay(), torch.zeros(2, 1)
    assert [replay.is_due("key", z) for _ in range(5)] == [False, False, False, True, True]
    monkeypatch.setattr("splitveil.regularizers.entropy.replay._can_record", lambda z: z.is_cuda)
    assert not any(replay.is_due("other", z) for _ in range(5))
