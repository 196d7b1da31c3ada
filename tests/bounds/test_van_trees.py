"""Van Trees against closed forms and brute integration; what is wrong without a prior is shown to be wrong."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from references.bayes import bayes_mse
from splitveil.bounds import (
    Kind,
    Looks,
    Parts,
    Probing,
    choose_width,
    known_prior,
    look,
    raw,
    scalar_bound,
    smoothed,
    trace_bound,
)
from splitveil.bounds.smoothing import prior_information, variance
from splitveil.check import UsageError
from splitveil.mechanisms import Chain, Gaussian, TopK
from splitveil.split import Client
from worlds.linear_gaussian import LinearGaussian, world

WORLD = world(side=6, features=12, noise_std=0.1)
EXACT = Probing(images=4, directions=None)


def uniform(x: np.ndarray) -> np.ndarray:
    return np.ones_like(x)


def parts(this: LinearGaussian, n: int = 40) -> Parts:
    roles = ("train", "auxiliary", "victims")
    return Parts(*(this.part(n, 0, role) for role in roles), n_classes=2)


def looks(probing: Probing = EXACT, n: int = 40) -> Looks:
    return look(WORLD.client(), parts(WORLD, n), probing)


def test_without_its_prior_term_the_bound_is_wrong():
    error = bayes_mse(uniform, lambda x: x, std=0.5, low=0.0, high=1.0)
    assert error == pytest.approx(0.062, abs=5e-4)
    assert scalar_bound(1.0, dim=1, noise_var=0.25, prior=0.0) == 0.25 > 4 * error


def test_the_least_prior_term_is_right_only_in_the_limit():
    """Why bounds on raw images are called asymptotic: 12 = 1/Var, and a uniform density has no finite information."""
    ratio = {}
    for std in (0.5, 0.1, 0.01):
        error = bayes_mse(uniform, lambda x: x, std=std, low=0.0, high=1.0)
        ratio[std] = scalar_bound(1.0, dim=1, noise_var=std**2, prior=12.0) / error
    assert ratio[0.1] > 1.05
    assert ratio[0.01] == pytest.approx(1, abs=0.02)


@settings(max_examples=25, deadline=None)
@given(width=st.floats(0.1, 2.0), std=st.floats(0.02, 1.0), rate=st.floats(0.0, 6.0), bend=st.floats(0.0, 1.0))
def test_with_cosine_noise_it_holds_for_every_curve(width, std, rate, bend):
    def density(u: np.ndarray) -> np.ndarray:
        return np.cos(math.pi * u / width) ** 2

    def curve(u: np.ndarray) -> np.ndarray:
        return u + bend * np.sin(rate * u)

    u = width * ((np.arange(4000) + 0.5) / 4000 - 0.5)
    weight = density(u) / density(u).sum()
    slope = float(weight @ (1 + bend * rate * np.cos(rate * u)) ** 2)
    error = bayes_mse(density, curve, std=std, low=-width / 2, high=width / 2)
    bound = scalar_bound(slope, dim=1, noise_var=std**2, prior=prior_information(width))
    assert bound <= error * (1 + 1e-3)
    assert bound < variance(width)


@pytest.mark.parametrize("releases", [1, 9])
def test_the_trace_form_is_the_optimum_of_a_linear_gaussian_world(releases):
    gram, prior = WORLD.matrix.T @ WORLD.matrix, torch.linalg.inv(WORLD.covariance)
    found = trace_bound(gram, noise_var=WORLD.noise_std**2 / releases, prior=prior)
    assert found == pytest.approx(WORLD.optimal_mse(releases), rel=1e-8)
    weaker = scalar_bound(
        float(gram.trace()),
        dim=36,
        noise_var=WORLD.noise_std**2 / releases,
        prior=float(prior.trace()) / 36,
    )
    assert weaker < found


@pytest.mark.parametrize("releases", [1, 9])
def test_measured_on_the_client_it_is_the_optimum_too(releases):
    prior = torch.linalg.inv(WORLD.covariance)
    found = known_prior(looks(), prior, releases=releases)
    assert found.value == pytest.approx(WORLD.optimal_mse(releases), rel=1e-4)
    assert found.kind is Kind.SAMPLED
    assert found.is_about_attacks
    assert "density" in found.holds_if[0]


def test_random_directions_cost_tightness_but_not_truth():
    prior, random = torch.linalg.inv(WORLD.covariance), looks(Probing(images=300), 300)
    found = known_prior(random, prior)
    scalar = known_prior(random, prior, form="scalar")
    assert scalar.value < found.safe <= WORLD.optimal_mse()
    assert found.value > 0.9 * WORLD.optimal_mse()


@pytest.mark.parametrize("form", ["scalar", "trace"])
def test_the_smoothed_form_is_that_of_the_formula(form):
    found = smoothed(looks(replace(EXACT, width=0.2)), form=form, releases=2)
    gram, noise_var, prior = WORLD.matrix.T @ WORLD.matrix, WORLD.noise_std**2 / 2, prior_information(0.2)
    wanted = (
        scalar_bound(float(gram.trace()), dim=36, noise_var=noise_var, prior=prior)
        if form == "scalar"
        else trace_bound(gram, noise_var=noise_var, prior=prior * torch.eye(36).double())
    )
    assert found.value == pytest.approx(wanted, rel=1e-4)
    assert found.kind is Kind.SAMPLED
    assert found.quantity == "MSE on x + u"
    assert not found.is_about_attacks  # attacks are scored on x
    assert "x + u, not x" in found.describe()


@pytest.mark.parametrize("releases", [1, 16])
def test_raw_images_have_only_an_asymptotic_one_which_is_right_for_gaussians(releases):
    found = raw(looks(Probing(images=1000, directions=None), 1000), releases=releases)
    assert found.value == pytest.approx(WORLD.optimal_mse(releases), rel=0.06)
    assert found.kind is Kind.ASYMPTOTIC
    assert not found.is_about_attacks


def test_the_width_that_says_most_is_found():
    client, images = WORLD.client(), WORLD.part(20, 0, "auxiliary")
    assert choose_width(client, images, (0.05, 0.5, 0.1), probing=EXACT) == 0.5


def test_features_that_jump_are_refused():
    client = Client(WORLD.client().encoder, Chain([TopK(keep=3), Gaussian(std=0.1)]))
    with pytest.raises(UsageError, match="features without jumps, got top-k before the noise"):
        look(client, parts(WORLD))


def test_jacobians_at_the_wrong_place_are_refused():
    with pytest.raises(UsageError, match="needs Jacobians at smoothed ones"):
        smoothed(looks())
    for form in (raw, lambda at: known_prior(at, 1.0)):
        with pytest.raises(UsageError, match="needs Jacobians at the images as they are"):
            form(looks(replace(EXACT, width=0.2)))
