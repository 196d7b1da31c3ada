"""proved bound ≤ optimum ≤ attack, over worlds that nobody has picked."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from splitveil.attacks import Averaged, Ridge, Seen, Threat, grant, oracle_of
from splitveil.bounds import Bound, Probing, bounds_of, known_prior, look, parts_of
from splitveil.bounds.smoothing import smoothed, variance
from splitveil.bounds.van_trees import WIDTH
from splitveil.data import ImageSet
from splitveil.evaluation import FlagName, Suite, Trial, evaluate
from splitveil.evaluation.flags import below_bound
from splitveil.metrics import interval, mse
from splitveil.randomness import SeededSource
from worlds.linear_gaussian import LinearGaussian, world

drawn_worlds = st.builds(
    world,
    side=st.integers(3, 7),
    features=st.integers(1, 30),
    noise_std=st.floats(0.01, 3.0),
    seed=st.integers(0, 10**6),
)


def proved(this: LinearGaussian, data: ImageSet, releases: int) -> list[Bound]:
    """All proved bounds on the error, the one with the world's own prior among them."""
    client, prior = this.client(), torch.linalg.inv(this.covariance)
    exact = look(client, parts_of(data), Probing(images=4, directions=None))
    given_prior = known_prior(exact, prior, releases=releases)
    return [bound for bound in (*bounds_of(client, data, releases=releases), given_prior) if bound.is_about_attacks]


@settings(max_examples=8, deadline=None, derandomize=True)  # else one world in 40 has lucky victims
@given(this=drawn_worlds, releases=st.sampled_from([1, 4, 16]))
def test_proved_bounds_are_below_the_optimum_and_below_the_attack(this, releases):
    data = this.images(n=400, n_victims=400)
    bounds = proved(this, data, releases)
    assert {bound.name for bound in bounds} == {"two points", "van Trees, trace, given prior"}
    attacked = ridge(this, data, releases)
    for bound in bounds:
        assert bound.safe <= this.optimal_mse(releases) * (1 + 1e-5)  # float32; the given prior makes it an equality
    assert below_bound(attacked, bounds, releases=releases) is None


def ridge(this: LinearGaussian, data: ImageSet, releases: int):
    oracle = oracle_of(this.client())
    threat = Threat(releases=releases)
    held = grant(threat, oracle=oracle, auxiliary=data.auxiliary, selection=data.selection)
    inverter = (Averaged(Ridge(), releases) if releases > 1 else Ridge()).fit(held, seed=0)
    x = data.victims.images()
    return interval(mse(x, inverter(Seen(oracle.release(x, source=SeededSource(1), releases=releases)))))


@settings(max_examples=8, deadline=None)
@given(this=drawn_worlds, releases=st.sampled_from([1, 16]))
def test_the_smoothed_bound_is_below_the_best_linear_answer_about_smoothed_images(this, releases):
    data = this.images(n=300, n_victims=300)
    found = bounds_of(this.client(), data, releases=releases)
    bound = next(bound for bound in found if bound.quantity == "MSE on x + u")
    loose = LinearGaussian(
        this.mean,
        this.covariance + variance(WIDTH) * torch.eye(len(this.mean)),
        this.matrix,
        this.noise_std,
        this.image_shape,
    )
    assert bound.safe <= loose.optimal_mse(releases)
    assert bound.safe <= variance(WIDTH)


def test_an_attack_on_smoothed_images_is_above_their_bound():
    this = world(side=6, features=36, noise_std=0.05)
    data = this.images(n=600, n_victims=1000)
    bound = next(bound for bound in bounds_of(this.client(), data) if bound.quantity == "MSE on x + u")
    x = smoothed(data.victims.images(), WIDTH, SeededSource(7))
    loose = LinearGaussian(
        this.mean,
        this.covariance + variance(WIDTH) * torch.eye(36),
        this.matrix,
        this.noise_std,
        this.image_shape,
    )
    z = oracle_of(this.client()).release(x, source=SeededSource(8))[0].double()
    x_hat = this.mean + (z - this.matrix @ this.mean) @ loose.gain().T
    error = (x.flatten(1).double() - x_hat).square().mean().item()
    assert bound.safe <= error
    assert bound.value > 0.2 * error  # and it says something


@pytest.mark.parametrize("std", [0.5, 0.05])
def test_an_attack_contradicts_a_proved_bound_where_its_assumptions_are_broken(std):
    """The bounds are those of σ = 0.5. A client that adds less noise than it says is found out."""
    said = world(side=6, features=36, noise_std=0.5)
    data = said.images(n=600, n_victims=600)
    suite = Suite("ridge", (Trial(Ridge(), Threat()),))
    found = evaluate(replace(said, noise_std=std).client(), suite, data, bounds=proved(said, data, releases=1))
    is_raised = any(flag.name is FlagName.BELOW_BOUND for flag in found.best.flags)
    assert is_raised is (std < 0.5)
