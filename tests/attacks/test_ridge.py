"""Ridge against scikit-learn, in both of its forms."""

import sys

import pytest
import torch
from sklearn.linear_model import LinearRegression

from splitveil.attacks import QueriedPairs, Ridge, Seen, Threat, grant, oracle_of
from splitveil.attacks.ridge import _solve
from splitveil.metrics import mse
from splitveil.randomness import SeededSource
from worlds.linear_gaussian import world


def fitted(this, n: int):
    held = grant(
        Threat(), oracle=oracle_of(this.client()), auxiliary=this.part(n, 0, "a"), selection=this.part(200, 0, "s")
    )
    return Ridge().fit(held, seed=0)


def undamped(this, n: int):
    """The solution at a vanishing λ, which scikit-learn has too."""
    return _solve(QueriedPairs(this.part(n, 0, "a"), oracle_of(this.client())), seed=0).at(1e-12)


def test_without_noise_it_is_least_squares():
    this, x = world(noise_std=0.0), world().part(300, 0, "v").images()
    own = this.part(900, 0, "a").images()
    z, z_own = (images.flatten(1).double() @ this.matrix.T for images in (x, own))
    reference = LinearRegression().fit(z_own, own.flatten(1).double())
    x_hat = undamped(this, 900)(Seen(z.float()[None]))
    wanted = torch.from_numpy(reference.predict(z)).reshape(x.shape).clamp(0, 1)
    torch.testing.assert_close(x_hat.double(), wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("strength", [1e-6, 1e-3, 1.0])
def test_the_gram_form_is_the_same_solution(monkeypatch, strength):
    this = world(noise_std=0.0)
    pairs = QueriedPairs(this.part(500, 0, "a"), oracle_of(this.client()))
    seen = Seen((this.part(50, 0, "v").images().flatten(1) @ this.matrix.T.float())[None])
    by_covariance = _solve(pairs, seed=0).at(strength)(seen)
    monkeypatch.setattr(sys.modules["splitveil.attacks.ridge"], "MAX_SIDE", 1)
    torch.testing.assert_close(_solve(pairs, seed=0).at(strength)(seen), by_covariance, atol=1e-5, rtol=0)


def test_more_features_than_pairs_are_no_obstacle():
    this = world(side=8, features=200, noise_std=0.05)
    inverter = fitted(this, 100)
    x = this.part(200, 0, "v").images()
    seen = Seen(oracle_of(this.client()).release(x, source=SeededSource(0, "v")))
    assert mse(x, inverter(seen)).mean() < 0.5 * this.prior_mse


def test_constant_features_give_the_mean_image():
    part = world().part(100, 0, "a")
    held = grant(
        Threat(), oracle=oracle_of(torch.nn.Sequential(torch.nn.Flatten(), Zero())), auxiliary=part, selection=part
    )
    x_hat = Ridge().fit(held, seed=0)(Seen(torch.zeros(1, 3, 4)))
    torch.testing.assert_close(x_hat[0], part.images().mean(0), atol=1e-5, rtol=0)


class Zero(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :4] * 0


def test_its_health_is_measured_on_fresh_releases():
    health = fitted(world(), 900).health
    assert health.train_mse == pytest.approx(world().optimal_mse(), rel=0.1)
    assert health.selection_mse == pytest.approx(world().optimal_mse(), rel=0.15)
