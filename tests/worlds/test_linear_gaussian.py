"""optimum ≤ every attack, in a world where the optimum is known; and the good attacks come close to it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from splitveil.attacks import Attack, Averaged, DecoderAttack, Ridge, Seen, Threat, grant, oracle_of
from splitveil.fitting import Plan
from splitveil.metrics import interval, mse
from splitveil.randomness import SeededSource
from worlds.linear_gaussian import LinearGaussian, world

PLAN = Plan(steps=600, lr=3e-3, ema=0.99, check_every=50)
CONV = DecoderAttack("conv", batch=128, plan=PLAN)
WORLD = world()


def errors(this: LinearGaussian, attack: Attack, releases: int = 1, n: int = 4000) -> tuple[torch.Tensor, torch.Tensor]:
    """Errors of the attack and of the posterior mean on the same releases of the same victims."""
    oracle = oracle_of(this.client())
    held = grant(
        Threat(releases=releases),
        oracle=oracle,
        auxiliary=this.part(n, 0, "auxiliary"),
        selection=this.part(1000, 0, "selection"),
    )
    inverter = attack.fit(held, seed=0)
    x = this.part(2000, 0, "victims").images()
    seen = Seen(oracle.release(x, source=SeededSource(1, "victims"), releases=releases))
    return mse(x, inverter(seen)), mse(x, this.best_attack(seen))


@pytest.mark.parametrize("releases", [1, 4, 16])
def test_the_posterior_mean_has_the_closed_form_s_error(releases):
    x = WORLD.part(4000, 1, "victims").images()
    seen = Seen(oracle_of(WORLD.client()).release(x, source=SeededSource(2), releases=releases))
    assert mse(x, WORLD.best_attack(seen)).mean().item() == pytest.approx(WORLD.optimal_mse(releases), rel=0.02)


def test_without_features_the_optimum_is_the_prior_and_without_noise_or_loss_it_is_zero():
    loud = world(noise_std=1e4)
    assert loud.optimal_mse() == pytest.approx(loud.prior_mse, rel=1e-3)
    open_world = world(features=64, noise_std=1e-6)
    assert open_world.optimal_mse() < 1e-6 * open_world.prior_mse


@settings(max_examples=12, deadline=None, derandomize=True)
@given(side=st.integers(3, 8), features=st.integers(1, 30), noise_std=st.floats(0.01, 1.0), seed=st.integers(0, 10**6))
def test_ridge_is_near_the_optimum_and_never_below_it(side, features, noise_std, seed):
    this = world(side=side, features=features, noise_std=noise_std, seed=seed)
    found, best = errors(this, Ridge(), n=2000)
    gap = interval(found - best)  # paired: the same victims and noise
    assert gap.high >= 0
    assert found.mean() <= 1.05 * best.mean()


def test_the_decoder_is_within_5_percent_of_the_optimum_and_not_below_it():
    found, best = errors(WORLD, CONV)
    assert interval(found - best).high >= 0
    assert found.mean() <= 1.05 * best.mean()


@pytest.mark.slow
@pytest.mark.parametrize("rung", ["residual", "unet"])
def test_the_higher_rungs_are_too(rung):
    found, best = errors(WORLD, DecoderAttack(rung, batch=128, plan=Plan(steps=700, lr=3e-3, ema=0.99)))
    assert interval(found - best).high >= 0
    assert found.mean() <= 1.05 * best.mean()


def test_averaging_lowers_the_error_as_theory_says():
    found = {t: errors(WORLD, Averaged(Ridge(), t) if t > 1 else Ridge(), t)[0].mean().item() for t in (1, 4, 16)}
    for releases, error in found.items():
        assert error == pytest.approx(WORLD.optimal_mse(releases), rel=0.04)
    assert found[1] > 1.1 * found[4] > 1.1 * found[16]


def test_a_decoder_that_was_trained_on_averages_uses_them():
    short = DecoderAttack("conv", batch=128, plan=Plan(steps=300, lr=3e-3, ema=0.98, check_every=50))
    found, best = errors(WORLD, Averaged(short, 16), 16)
    assert best.mean() <= found.mean() < 0.9 * WORLD.optimal_mse(1)


def test_a_decoder_for_one_release_does_not_gain_as_much_from_averages():
    """Averages in front of an attack that was fitted on single releases are weaker than fitting on averages."""
    oracle, x = oracle_of(WORLD.client()), WORLD.part(2000, 0, "victims").images()
    held = grant(Threat(), oracle=oracle, auxiliary=WORLD.part(4000, 0, "a"), selection=WORLD.part(1000, 0, "s"))
    single = Ridge().fit(held, seed=0)
    releases = oracle.release(x, source=SeededSource(1, "victims"), releases=16)
    mean_fed = mse(x, single(Seen(releases.mean(0, keepdim=True)))).mean()
    fitted_on_means, _ = errors(WORLD, Averaged(Ridge(), 16), 16)
    assert fitted_on_means.mean() < 0.98 * mean_fed
