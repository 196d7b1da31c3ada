"""W for a Gaussian prior: small matrices against the dense ones they stand for."""

import pytest
import torch

from splitveil.bounds import trace_bound
from splitveil.bounds.gaussian_prior import gaussian_weighing

N, D = 40, 9


def draw(n: int, seed: int) -> torch.Tensor:
    return torch.randn(n, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_its_numbers_are_those_of_dense_matrices():
    images, rows, fresh = draw(N, 0), 3 * draw(60, 1), draw(20, 2)
    weighing = gaussian_weighing(images.reshape(N, 1, 3, 3), rows)
    covariance = torch.cov(images.T, correction=0)
    dense = torch.linalg.inv(rows.T @ rows / 60 + torch.linalg.inv(covariance))
    assert weighing.trace == pytest.approx(dense.trace().item())
    assert weighing.prior_cost == pytest.approx((dense @ torch.linalg.inv(covariance) @ dense).trace().item())
    torch.testing.assert_close(weighing.energies(fresh), (fresh @ dense).square().sum(1))


def test_read_where_it_was_fitted_it_is_the_trace_bound():
    images, rows = draw(N, 0), 3 * draw(60, 1)
    weighing = gaussian_weighing(images.reshape(N, 1, 3, 3), rows)
    prior = torch.linalg.inv(torch.cov(images.T, correction=0))
    found = weighing.bound(weighing.energies(rows).mean().item())
    assert found == pytest.approx(trace_bound(rows.T @ rows / 60, noise_var=1.0, prior=prior), rel=1e-9)


def test_fewer_images_than_pixels_are_no_obstacle():
    weighing = gaussian_weighing(draw(4, 0).reshape(4, 1, 3, 3), draw(60, 1))
    spread = draw(4, 0).var(0, correction=0).mean().item()
    assert 0 < weighing.bound(weighing.energies(draw(50, 2)).mean().item()) < spread
