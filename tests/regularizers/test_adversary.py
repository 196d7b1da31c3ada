"""A live adversary: its value and gradient, what it does to an encoder, and that a stop leaves no trace."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from references.adversary import decoder_mse
from references.steps import make_step
from splitveil.check import UsageError
from splitveil.mechanisms import Gaussian
from splitveil.regularizers.adversary import Adversary
from splitveil.regularizers.base import Step
from splitveil.training import Recipe, Term, Trained, Weight, train
from splitveil.types import Sent
from worlds.small import small_images, small_split
from worlds.stopping import StopAfter

RECIPE = Recipe(epochs=4, batch_size=24, lr=0.05, warmup_epochs=0)


def _step(z: Tensor, *, at: int = 0) -> Step:
    step = make_step(z, torch.zeros(len(z), dtype=torch.int64), n_classes=2, step=at)
    x = torch.rand(len(z), 1, 8, 8, generator=torch.Generator().manual_seed(at), dtype=z.dtype)
    return replace(step, x=x, z_sent=Sent(z))


def _features(n: int = 6, *, dtype: torch.dtype = torch.float64, seed: int = 3) -> Tensor:
    return torch.rand(n, 2, 2, 2, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def _fitted(n_fits: int = 5, dtype: torch.dtype = torch.float64) -> Adversary:
    adversary = Adversary(lr=0.01)
    for i in range(n_fits):
        adversary.fit(_step(_features(dtype=dtype, seed=i), at=i))
    return adversary


def test_its_value_is_minus_the_logarithm_of_the_decoder_s_error() -> None:
    adversary, step = _fitted(), _step(_features())
    wanted = -decoder_mse(adversary.decoder.state_dict(), step.x, step.z_sent).log()
    torch.testing.assert_close(adversary(step).loss, wanted, rtol=1e-12, atol=0)
    torch.testing.assert_close(adversary(step).gauges["mse"], (-wanted).exp(), rtol=1e-12, atol=0)


def test_its_gradient_is_that_of_finite_differences() -> None:
    adversary, z = _fitted(), _features(2)
    step = _step(z.clone().requires_grad_())
    (slope,) = torch.autograd.grad(adversary(step).loss, step.z)
    weights, h = adversary.decoder.state_dict(), 1e-6
    for place in [(0, 0, 0, 0), (0, 1, 1, 0), (1, 0, 1, 1), (1, 1, 0, 1)]:
        gap = torch.zeros_like(z)
        gap[place] = h
        up, down = (-decoder_mse(weights, step.x, z + sign * gap).log() for sign in (1, -1))
        torch.testing.assert_close(slope[place], (up - down) / (2 * h), rtol=1e-6, atol=1e-9)


def test_charging_leaves_the_decoder_without_gradient_and_fitting_leaves_the_encoder_without() -> None:
    adversary, step = _fitted(), _step(_features().requires_grad_())
    adversary(step).loss.backward()
    assert all(parameter.grad is None for parameter in adversary.parameters())
    step.z.grad = None
    adversary.fit(step)
    assert step.z.grad is None


def test_fitting_lowers_its_error_on_features_that_stand_still() -> None:
    adversary, step = Adversary(lr=3e-3), _step(_features(32, dtype=torch.float32))
    adversary.fit(step)
    before = adversary(step).gauges["mse"]
    for _ in range(60):
        adversary.fit(step)
    assert adversary(step).gauges["mse"] < 0.5 * before


def test_it_takes_vectors_and_tokens() -> None:
    for shape in [(12,), (4, 6)]:
        adversary, step = Adversary(), _step(torch.rand(5, *shape, requires_grad=True))
        adversary.fit(step)
        (slope,) = torch.autograd.grad(adversary(step).loss, step.z)
        assert slope.shape == (5, *shape)
        assert slope.abs().sum() > 0


def test_a_step_that_is_not_finite_is_charged_nothing_and_counted() -> None:
    adversary = _fitted()
    broken = _step(_features().fill_(torch.inf).requires_grad_())
    penalty = adversary(broken)
    assert torch.autograd.grad(penalty.loss, broken.z)[0].abs().sum() == 0
    assert penalty.loss == 0
    assert adversary.broken_steps() == 1
    assert penalty.gauges["broken"] == 1


def test_under_bfloat16_autocast_value_and_gradient_are_finite_float32() -> None:
    adversary, step = _fitted(dtype=torch.float32), _step(_features(dtype=torch.float32).requires_grad_())
    plain = adversary(step).loss
    with torch.autocast("cpu", torch.bfloat16):
        adversary.fit(step)
        loss = adversary(step).loss
    loss.backward()
    assert loss.dtype == torch.float32
    assert step.z.grad is not None
    assert step.z.grad.isfinite().all()
    torch.testing.assert_close(loss, plain, rtol=0.1, atol=0.1)


def test_the_state_goes_into_a_fresh_one_and_both_go_on_alike() -> None:
    one, other = _fitted(), Adversary(lr=0.01)
    other.load_state_dict(one.state_dict())
    for i in range(3):
        for each in (one, other):
            each.fit(_step(_features(seed=10 + i), at=10 + i))
    state, again = one.state_dict(), other.state_dict()
    assert state.keys() == again.keys()
    assert all(torch.equal(value, again[name]) for name, value in state.items())


def test_it_needs_a_step_of_its_own_at_least() -> None:
    with pytest.raises(UsageError, match="steps must be ≥ 1"):
        Adversary(steps=0)


def _run(weight: float, recipe: Recipe = RECIPE, **options: Any) -> Trained:
    terms = [Term("adversary", Adversary(lr=3e-3), Weight(weight))]
    split = small_split(mechanism=Gaussian(std=0.1))
    return train(split, small_images(), recipe, device="cpu", regularizers=terms, **options)


def test_a_stopped_and_resumed_run_ends_in_the_same_weights(tmp_path: Path) -> None:
    whole = _run(0.3, out=tmp_path / "whole")
    assert _run(0.3, out=tmp_path / "parts", watcher=StopAfter(2)).stopped == "interrupted"
    resumed = _run(0.3, out=tmp_path / "parts", resume=True)
    one, other = ({**t.split.client.state_dict(), **t.split.server.state_dict()} for t in (whole, resumed))
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    for a, b in zip(whole.history, resumed.history, strict=True):
        assert {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k != "seconds"}


def test_an_encoder_that_is_charged_is_decoded_worse() -> None:
    recipe = replace(RECIPE, epochs=30)
    free, charged = (_run(weight, recipe).history[-1]["adversary/mse"] for weight in (1e-9, 1.0))
    assert charged > 1.3 * free
