import math

import numpy as np
import pytest
import torch
from scipy import stats

from references.attention import exact_attention, polynomial_attention, relative_error, unit_rows
from splitveil.check import UsageError
from splitveil.private_attention import Bounds, DPTreeCrossAttention, PolynomialFeatures, PrivacySpec, PrivateKV
from splitveil.private_attention.tree import _monomial_peak, tree_epsilon, truncated_laplace

BOUNDS = Bounds(1.0, 1.0, 1.0)


def tree(n: int = 100, *, epsilon: float = 1.0, d: int = 3, **options) -> DPTreeCrossAttention:
    keys, values = unit_rows(n, d, seed=1), unit_rows(n, 2, seed=2)
    return DPTreeCrossAttention(keys, values, PrivacySpec(epsilon, 1e-6), BOUNDS, beta=1.0, seed=0, **options)


def test_without_noise_it_answers_as_the_taylor_polynomial() -> None:
    keys, values, q = unit_rows(100, 3, seed=1), unit_rows(100, 2, seed=2), unit_rows(9, 3, seed=3)
    coefficients = PolynomialFeatures(3, 3).taylor(1.0).coefficients(1.0)
    answer = tree(epsilon=1e9, degree=3).attend(q)
    assert relative_error(answer, polynomial_attention(q, keys, values, coefficients)) < 1e-4


@pytest.mark.parametrize(("start", "end"), [(0, 100), (3, 57), (99, 100), (0, 1), (50, 50)])
def test_a_range_query_sums_the_rows_of_the_range(start: int, end: int) -> None:
    t = tree(epsilon=1e9)
    keys, values = unit_rows(100, 3, seed=1), unit_rows(100, 2, seed=2)
    columns = torch.cat([values, torch.ones(100, 1)], dim=1)[start:end]
    wanted = t._features(keys[start:end]).T @ columns.numpy()
    assert np.allclose(t.range(start, end), wanted, atol=1e-3)


def test_space_grows_with_rows_features_columns_and_copies() -> None:
    assert tree(64).space == 127 * 10 * 3
    assert tree(128).space == 255 * 10 * 3
    assert tree(64, copies=3).space == 3 * tree(64).space
    assert tree(64, degree=1).space == 127 * 4 * 3


def test_the_budget_of_all_nodes_a_row_is_in_adds_up() -> None:
    epsilon, delta, n_trees = 1.0, 1e-6, 45
    one = tree_epsilon(epsilon, delta, n_trees)
    cost = math.sqrt(2 * n_trees * math.log(2 / delta)) * one + n_trees * one * math.expm1(one)
    assert min(cost, n_trees * one) <= epsilon * (1 + 1e-9)
    t = tree(100)
    assert t._node_epsilon * t.n_levels == pytest.approx(tree_epsilon(1.0, 1e-6, 30))
    assert t._node_delta * t.n_levels * 30 == pytest.approx(0.5e-6)


def test_truncated_laplace_is_cut_and_private() -> None:
    """At the cut the two neighbors differ by at most δ of mass, and inside by a factor of at most e^ε."""
    epsilon, delta = 0.5, 1e-3
    cut = math.log1p(math.expm1(epsilon) / (2 * delta)) / epsilon
    x = truncated_laplace((200_000,), epsilon, delta, np.random.default_rng(0))
    assert np.abs(x).max() <= cut
    inside = stats.laplace(scale=1 / epsilon)
    mass = inside.cdf(cut) - inside.cdf(-cut)
    assert stats.kstest(x, lambda v: (inside.cdf(v) - inside.cdf(-cut)) / mass).pvalue > 1e-4
    leaked = (inside.cdf(cut) - inside.cdf(cut - 1)) / mass
    assert leaked <= delta * (1 + 1e-9)


@pytest.mark.parametrize("indices", [(0,), (0, 0), (0, 1), (0, 0, 1), (0, 1, 2)])
def test_the_largest_monomial_on_the_sphere(indices: tuple[int, ...]) -> None:
    x = unit_rows(200_000, 3, seed=1)
    largest = float(math.prod(x[:, i] for i in indices).abs().max())
    assert largest <= _monomial_peak(indices) + 1e-12
    assert largest == pytest.approx(_monomial_peak(indices), rel=0.02)


def test_one_release_beats_the_tree_by_far() -> None:
    """The paper's row, until beaten: same rows, same (ε, δ), d = 4, n = 7,000."""
    keys, q = unit_rows(7000, 4, seed=1), unit_rows(50, 4, seed=2)
    truth, spec = exact_attention(q, keys, keys, 1.0), PrivacySpec(4.0, 1e-6)
    of_tree = DPTreeCrossAttention(keys, keys, spec, BOUNDS, beta=1.0, seed=0).attend(q)
    features = PolynomialFeatures(4, 2).taylor(1.0)
    of_release = PrivateKV.builder(spec, BOUNDS, features, 4, seed=0).add(keys, keys).release().attend(q).output
    assert relative_error(of_release, truth) < 0.1 * relative_error(of_tree, truth)


def test_the_papers_bounds_are_stated() -> None:
    bounds = tree(100, degree=3).paper_bounds()
    eps_s = PolynomialFeatures(3, 3).taylor(1.0).relative_error(1.0)
    assert bounds.relative == pytest.approx(2 * eps_s / (1 - eps_s))
    assert bounds.additive == pytest.approx(20**2 / ((1 - eps_s) * 100 * 1.0))


def test_limits_are_told() -> None:
    with pytest.raises(UsageError, match="d ≤ 4, got 5"):
        tree(d=5)
    with pytest.raises(UsageError, match="copies must be odd"):
        tree(copies=2)
