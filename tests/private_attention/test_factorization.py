import math

import numpy as np
import pytest

from splitveil.check import UsageError
from splitveil.private_attention.factorization import ONE, Factorization, factorization

NAMES = ["sqrt_toeplitz", "tree", "independent"]


def matrices(factors: Factorization) -> tuple[np.ndarray, np.ndarray]:
    """B and C, dense."""
    rows = [row for tick in range(factors.horizon) for row in factors.encode(tick)]
    c = np.zeros((len(rows), factors.horizon))
    for i, row in enumerate(rows):
        c[i, : len(row)] = row / ONE
    b = np.zeros((factors.horizon, len(rows)))
    for tick in range(factors.horizon):
        b[tick, : len(factors.decode(tick))] = factors.decode(tick)
    return b, c


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("horizon", [1, 2, 7, 16, 65])
def test_the_factors_multiply_to_the_triangle_of_ones(name: str, horizon: int) -> None:
    b, c = matrices(factorization(name, horizon))
    assert np.allclose(b @ c, np.tril(np.ones((horizon, horizon))), atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("horizon", [1, 5, 16, 33])
def test_column_square_is_the_largest_column_of_c(name: str, horizon: int) -> None:
    factors = factorization(name, horizon)
    _, c = matrices(factors)
    assert factors.column_square / ONE**2 == pytest.approx((c**2).sum(0).max())
    assert factors.n_rows == len(c)
    assert (c >= 0).all()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("sqrt_toeplitz", {16: 1.9, 64: 2.4, 1024: 3.3}),
        ("tree", {16: 4.5, 64: 6.5, 1024: 10.5}),
        ("independent", {16: 4.0, 64: 8.0, 1024: 32.0}),
    ],
)
def test_noise_multipliers_are_those_of_the_literature(name: str, wanted: dict[int, float]) -> None:
    for horizon, multiplier in wanted.items():
        factors = factorization(name, horizon)
        worst = max(factors.multiplier(tick) for tick in range(horizon))
        assert worst == pytest.approx(multiplier, abs=0.06)


def test_sqrt_toeplitz_is_the_square_root() -> None:
    _, c = matrices(factorization("sqrt_toeplitz", 12))
    assert np.allclose(c @ c, np.tril(np.ones((12, 12))), atol=12 * 2.0**-16)


def test_fixed_point_costs_next_to_nothing() -> None:
    factors = factorization("sqrt_toeplitz", 256)
    root = np.cumprod([1.0] + [(2 * k - 1) / (2 * k) for k in range(1, 256)])
    assert factors.multiplier(255) == pytest.approx(float((root**2).sum()), rel=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_an_insert_and_its_delete_move_at_most_root_two(name: str) -> None:
    factors = factorization(name, 24)
    _, c = matrices(factors)
    worst = max(float(np.linalg.norm(c[:, i] - c[:, j])) for i in range(24) for j in range(i))
    assert worst <= math.sqrt(2 * factors.column_square) / ONE + 1e-12


def test_wrong_names_and_horizons_are_told() -> None:
    with pytest.raises(UsageError, match="did you mean 'tree'"):
        factorization("tre", 4)
    with pytest.raises(UsageError, match="horizon must lie in"):
        factorization("tree", 0)
