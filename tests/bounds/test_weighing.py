"""W: its algebra against dense matrices, and that every W bounds from below."""

import pytest
import torch

from splitveil.bounds import trace_bound
from splitveil.bounds.weighing import Weighing, energy, fit_weighing, identity

D = 12


def rows(n: int, seed: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(n, D, generator=rng, dtype=torch.float64) * torch.linspace(0.1, 3, D, dtype=torch.float64)


def dense(weighing: Weighing) -> torch.Tensor:
    return weighing.apply(torch.eye(D, dtype=torch.float64))


@pytest.mark.parametrize("n", [5, 200])
@pytest.mark.parametrize("prior", [0.7, torch.diag(torch.linspace(0.5, 2, D, dtype=torch.float64))])
def test_its_numbers_are_those_of_the_dense_matrix(n, prior):
    weighing = fit_weighing(rows(n, 0), rows(200, 1), prior)
    matrix, p = dense(weighing), prior if isinstance(prior, torch.Tensor) else prior * torch.eye(D).double()
    torch.testing.assert_close(matrix, matrix.T)
    assert weighing.trace == pytest.approx(matrix.trace().item())
    assert weighing.prior_cost(prior) == pytest.approx((matrix.T @ p @ matrix).trace().item())
    assert energy(weighing, rows(50, 2)) == pytest.approx((rows(50, 2) @ matrix).square().sum(1).mean().item())


def test_with_rows_enough_it_is_the_inverse_and_reaches_the_trace_bound():
    many = rows(4000, 0)
    gram, prior = many.T @ many / len(many), torch.eye(D).double()
    best = trace_bound(gram, noise_var=1.0, prior=prior)
    weighing = fit_weighing(many, many, 1.0)
    assert weighing.bound(energy(weighing, many), 1.0) == pytest.approx(best, rel=1e-9)
    torch.testing.assert_close(dense(weighing), torch.linalg.inv(gram + prior))


@pytest.mark.parametrize("n", [1, 3, 30])
def test_no_w_says_more_than_the_trace_bound_and_the_chosen_one_no_less_than_the_scalar_form(n):
    many = rows(4000, 0)
    best = trace_bound(many.T @ many / len(many), noise_var=1.0, prior=torch.eye(D).double())
    weighing = fit_weighing(rows(n, 1), many, 1.0)
    plain = identity(D, many)
    assert plain.bound(energy(plain, many), 1.0) <= weighing.bound(energy(weighing, many), 1.0) <= best


def test_an_estimate_in_the_inverse_would_overstate_the_bound():
    """Why W comes from other images: the inverse of a mean of few rows has too large a trace."""
    truth = trace_bound(torch.diag(torch.linspace(0.1, 3, D).double() ** 2), noise_var=1.0, prior=torch.eye(D).double())
    plugged, honest = [], []
    for seed in range(40):
        few = rows(10, seed)
        plugged.append(trace_bound(few.T @ few / 10, noise_var=1.0, prior=torch.eye(D).double()))
        weighing = fit_weighing(few, rows(10, 100 + seed), 1.0)
        honest.append(weighing.bound(energy(weighing, rows(4000, 999)), 1.0))
    assert min(plugged) > truth
    assert max(honest) < 1.01 * truth
