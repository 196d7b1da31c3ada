import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from references.attention import tensor_power, unit_rows
from splitveil.check import UsageError
from splitveil.private_attention import Bounds, PolynomialFeatures
from splitveil.private_attention.lattice import FEATURE_BITS
from splitveil.private_attention.polynomial import Monomials, PolynomialKernel


def fitted(d: int, degree: int, beta: float = 2.0) -> PolynomialFeatures:
    products = unit_rows(200, d, seed=1) @ unit_rows(200, d, seed=2).T
    return PolynomialFeatures(d, degree).fit_public(products, beta)


def phi(kernel: PolynomialKernel, keys: torch.Tensor) -> torch.Tensor:
    return kernel.lift((keys / kernel.key_norm).T.contiguous()).T * (kernel.norm / 2**FEATURE_BITS)


@given(
    d=st.integers(1, 6),
    degree=st.integers(0, 4),
    beta=st.floats(0.1, 6),
    key_norm=st.floats(0.2, 5),
    query_norm=st.floats(0.2, 5),
    taylor=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=80, deadline=None)
def test_inner_product_of_features_is_the_polynomial(
    d: int, degree: int, beta: float, key_norm: float, query_norm: float, taylor: bool, seed: int
) -> None:
    features = PolynomialFeatures(d, degree).taylor(beta) if taylor else fitted(d, degree, beta)
    kernel = features.bind(Bounds(key_norm, query_norm, 1.0))
    k, q = unit_rows(3, d, seed=seed) * key_norm * 0.9, unit_rows(3, d, seed=seed + 1) * query_norm
    ratio = kernel.query_coefficients(beta)
    psi = kernel.basis(q, beta) * torch.cat([ratio[j] * kernel.monomials.roots[j] for j in kernel.degrees])
    x = q @ k.T
    wanted = sum(a * x**j for j, a in enumerate(features.coefficients(beta).tolist()))
    size = sum(abs(a) * (key_norm * query_norm) ** j for j, a in enumerate(features.coefficients(beta).tolist()))
    assert float((psi @ phi(kernel, k).T - wanted).abs().max()) <= 1e-12 * size
    assert torch.allclose(kernel.query_norm(q, kernel.basis(q, beta), beta), psi.norm(dim=1), rtol=1e-12)


@given(d=st.integers(1, 5), degree=st.integers(0, 4), key_norm=st.floats(0.2, 5), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_features_stay_within_their_norm_and_least_inner_product(
    d: int, degree: int, key_norm: float, seed: int
) -> None:
    kernel = fitted(d, degree).bind(Bounds(key_norm, 1.3, 1.0))
    keys = torch.cat([unit_rows(40, d, seed=seed), -unit_rows(40, d, seed=seed), 0.3 * unit_rows(10, d, seed=seed)])
    lifted = phi(kernel, keys * key_norm)
    assert float(lifted.norm(dim=1).max()) <= kernel.norm * (1 + 1e-12)
    assert float((lifted @ lifted.T).min()) >= kernel.least_inner


def test_norm_and_least_inner_product_are_attained() -> None:
    kernel = fitted(3, 3).bind(Bounds(1.0, 1.0, 1.0))
    turn = torch.linspace(0, math.pi, 4001, dtype=torch.float64)
    circle = torch.stack([turn.cos(), turn.sin(), torch.zeros_like(turn)], dim=1)
    lifted = phi(kernel, circle)
    assert float(lifted.norm(dim=1).max()) == pytest.approx(kernel.norm, rel=1e-12)
    assert float((lifted @ lifted[0]).min()) == pytest.approx(kernel.least_inner, abs=1e-6 * kernel.norm**2)


def test_alpha_gives_the_least_noise_of_all_scalings() -> None:
    kernel = fitted(3, 2, 3.0).bind(Bounds(0.7, 1.6, 1.0))
    a = kernel.features.coefficients(3.0).abs()
    least = float(sum(a[j] * (0.7 * 1.6) ** j for j in range(3)))
    q = unit_rows(1, 3) * 1.6
    got = kernel.norm * float(kernel.query_norm(q, kernel.basis(q, 3.0), 3.0))
    assert got == pytest.approx(least, rel=1e-12)


def test_symmetric_monomials_keep_inner_products_of_tensor_powers() -> None:
    x, y = unit_rows(2, 3, seed=4)
    for degree in range(4):
        monomials = Monomials(3, degree)
        weigh = [monomials.of_rows(v)[-monomials.sizes[degree] :] * monomials.roots[degree] for v in (x, y)]
        assert float(weigh[0] @ weigh[1]) == pytest.approx(float(tensor_power(x, degree) @ tensor_power(y, degree)))


def test_columns_and_rows_give_the_same_monomials() -> None:
    x = unit_rows(5, 4)
    by_rows, by_columns = Monomials(4, 3).of_rows(x), Monomials(4, 3).of_columns(x.T.contiguous())
    assert torch.allclose(by_rows, by_columns.T, rtol=1e-15)


def test_least_squares_agrees_with_numpy() -> None:
    features = fitted(4, 3)
    x = features.products
    wanted = np.polynomial.polynomial.polyfit(x.numpy(), np.exp(2.0 * x.numpy()), 3)
    assert np.allclose(features.coefficients(2.0).numpy(), wanted, rtol=1e-8)


def test_least_squares_residual_is_orthogonal_to_polynomials() -> None:
    features = fitted(8, 2, 4.0)
    x = features.products
    residual = sum(a * x**j for j, a in enumerate(features.coefficients(4.0).tolist())) - (4.0 * x).exp()
    assert max(abs(float((residual * x**j).mean())) for j in range(3)) < 1e-9


@pytest.mark.parametrize(("beta", "degree"), [(1.0, 2), (2.0, 3), (0.5, 1)])
def test_taylor_bound_is_the_supremum_over_the_whole_interval(beta: float, degree: int) -> None:
    features = PolynomialFeatures(2, degree).taylor(beta)
    x = torch.linspace(-1.2, 1.2, 100_001, dtype=torch.float64)
    p = sum(a * x**j for j, a in enumerate(features.coefficients(beta).tolist()))
    dense = float((p * (-beta * x).exp() - 1).abs().max())
    assert features.relative_error(1.2) == pytest.approx(dense, rel=1e-9)


def test_a_degree_without_weight_is_dropped_and_stays_so_for_a_later_beta() -> None:
    x = torch.linspace(-1, 1, 101, dtype=torch.float64)
    features = PolynomialFeatures(3, 2).fit_public(x, 1e-9)  # e^{βx} ≈ 1: degree 1 and 2 carry nothing
    kernel = features.bind(Bounds(1.0, 1.0, 1.0))
    dropped = PolynomialKernel(features, key_norm=1.0, query_norm=1.0)
    dropped.alpha2 = [1.0, 0.0, 1.0]
    dropped.degrees = (0, 2)
    assert set(dropped.query_coefficients(2.0)) == {0, 2}
    assert kernel.features.coefficients(2.0, (0, 2))[1] == 0


def test_a_new_temperature_needs_no_new_features() -> None:
    kernel = fitted(3, 4, 2.0).bind(Bounds(1.0, 1.0, 1.0))
    q, k = unit_rows(4, 3, seed=7), unit_rows(5, 3, seed=8)
    folded = kernel.fold(phi(kernel, k).T, 1.0)
    got = kernel.basis(q, 1.0) @ folded
    assert torch.allclose(got, (q @ k.T).exp(), rtol=2e-2)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: PolynomialFeatures(0, 2), "d ≥ 1"),
        (lambda: PolynomialFeatures(300, 4), "lower the degree"),
        (lambda: PolynomialFeatures(3, 2).taylor(0.0), "beta must be > 0"),
        (lambda: PolynomialFeatures(3, 2).fit_public(torch.ones(2), 1.0), "public inner products"),
        (lambda: PolynomialFeatures(3, 2).bind(Bounds(1, 1, 1)), "call .fit_public"),
    ],
)
def test_wrong_features_are_told_in_one_line(make, says: str) -> None:
    with pytest.raises(UsageError, match=says) as error:
        make()
    assert "\n" not in str(error.value)
