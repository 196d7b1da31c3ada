"""Searches by optimization: how near the optimum they come, from every start and with every prior."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from splitveil.attacks import (
    DecoderAttack,
    OptimizationAttack,
    Ridge,
    Seen,
    oracle_of,
)
from splitveil.attacks.refinement import some
from splitveil.check import UsageError
from splitveil.fitting import Plan
from splitveil.mechanisms import Dropout, Gaussian
from splitveil.metrics import interval, mse
from splitveil.randomness import SeededSource
from splitveil.split import Client
from worlds.linear_gaussian import Matrix
from worlds.searches import MAP, WIDE, WORLD, held


def errors(attack: OptimizationAttack, releases: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Errors of the attack and of the posterior mean on the same releases of the same victims."""
    inverter = attack.fit(held(WORLD, releases=releases), seed=0)
    x = WORLD.part(400, 0, "victims").images()
    seen = Seen(oracle_of(WORLD.client()).release(x, source=SeededSource(1, "victims"), releases=releases))
    return mse(x, inverter(seen)), mse(x, WORLD.best_attack(seen))


@pytest.mark.parametrize("releases", [1, 4])
def test_the_most_likely_image_is_the_optimum_where_everything_is_gaussian(releases):
    found, best = errors(MAP, releases)
    assert interval(found - best).high >= 0
    assert found.mean() <= 1.05 * best.mean()


def test_it_ends_near_the_optimum_from_noise_too():
    found, best = errors(replace(MAP, start="noise"))
    assert interval(found - best).high >= 0
    assert found.mean() <= 1.08 * best.mean()


class Bent(nn.Module):
    """Features that an affine map cannot undo."""

    def __init__(self) -> None:
        super().__init__()
        self.straight = Matrix(WIDE.matrix)

    def forward(self, x):
        return torch.tanh(4 * self.straight(x - 0.5))


def test_from_least_squares_it_goes_on_where_they_end():
    client = Client(Bent(), Gaussian(std=0.02))
    oracle = oracle_of(client)
    known = held(WIDE, client)
    x = WIDE.part(400, 0, "victims").images()
    seen = Seen(oracle.release(x, source=SeededSource(1, "victims"), releases=1))
    searched, solved = (mse(x, attack.fit(known, seed=0)(seen)) for attack in (replace(MAP, start="affine"), Ridge()))
    assert interval(solved - searched).low > 0
    assert searched.mean() < 0.9 * solved.mean()


@pytest.mark.parametrize("prior", ["tv", "deep-image-prior"])
@pytest.mark.parametrize("loss", ["likelihood", "features"])
def test_other_priors_stay_above_the_optimum_and_below_the_mean_image(prior, loss):
    found, best = errors(OptimizationAttack(prior=prior, loss=loss, start="mean", steps=80, n_tuned=24, width=6))
    assert interval(found - best).high >= 0
    assert found.mean() < 0.85 * WORLD.prior_mse


def test_a_prior_is_worth_having():
    plain, smooth = (
        errors(OptimizationAttack(prior=prior, start="mean", steps=80, n_tuned=24))[0].mean()
        for prior in ("none", "tv")
    )
    assert smooth < 0.9 * plain


def test_started_from_a_decoder_it_is_not_worse_than_the_decoder_on_selection_images():
    decoder = DecoderAttack("conv", batch=64, plan=Plan(steps=80, lr=4e-3, ema=0.95, check_every=40))
    known = held(WORLD)
    first = decoder.fit(known, seed=0)
    attack = OptimizationAttack(prior="gaussian", start="decoder", steps=60, n_tuned=32, decoder=decoder)
    selection = some(known.selection, 32, seed=0)
    alone = mse(selection.x, first(selection.seen)).mean().item()
    health = attack.fit(known, seed=0).health
    assert health.selection_mse <= alone
    assert health.selection_mse < 0.99 * alone  # an unfinished decoder leaves something to find


def test_a_dropped_coordinate_does_not_pull():
    """Under dropout, x that explains what arrived is found; taking zeros for data is far worse."""
    client = Client(Matrix(WORLD.matrix), Dropout(rate=0.3))
    known = held(WORLD, client)
    x = WORLD.part(150, 0, "victims").images()
    seen = Seen(oracle_of(client).release(x, source=SeededSource(3)))
    error = mse(x, replace(MAP, steps=80, n_tuned=24).fit(known, seed=0)(seen)).mean()
    assert error < 0.85 * mse(x, Ridge().fit(known, seed=0)(seen)).mean()


def test_the_client_is_left_as_it_was():
    encoder = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten()).train()
    client = Client(encoder, Gaussian(std=0.1))
    before = {name: value.clone() for name, value in client.state_dict().items()}
    known = held(WORLD, client)
    inverter = OptimizationAttack(steps=5, n_tuned=4).fit(known, seed=0)
    inverter(Seen(oracle_of(client).release(WORLD.part(3, 1).images(), source=SeededSource(0))))
    assert all(torch.equal(value, before[name]) for name, value in client.state_dict().items())
    assert all(weight.grad is None and weight.requires_grad for weight in client.parameters())
    assert client.training and encoder[1].training  # noqa: PT018


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps must be"),
        ({"lr": -1.0}, "lr must be"),
        ({"start": "decoder", "decoder": DecoderAttack("conv", told="label")}, "told nothing"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        OptimizationAttack(**settings)
