import pytest
import torch

from references.attention import clustered_rows, exact_attention, relative_error, unit_rows
from splitveil.check import UsageError
from splitveil.private_attention import Bounds, NystromFeatures, PolynomialFeatures, PrivacySpec, PrivateKV


def test_its_bias_is_far_below_a_quadratics() -> None:
    keys, q, public = (clustered_rows(n, 3, seed=s) for s, n in enumerate((2000, 40, 300)))
    truth, spec, bounds = exact_attention(q, keys, keys, 4.0), PrivacySpec(1e5, 1e-6), Bounds(1, 1, 1)
    error = {}
    for features in (NystromFeatures(public, 4.0), PolynomialFeatures(3, 2).fit_public(q @ public.T, 4.0)):
        memory = PrivateKV.builder(spec, bounds, features, 3, seed=1).add(keys, keys).release()
        error[type(features)] = relative_error(memory.attend(q).output, truth)
    assert error[NystromFeatures] < 0.1 * error[PolynomialFeatures]


def test_another_temperature_is_reached_by_scaling_the_query() -> None:
    keys, q, public = unit_rows(2000, 2, seed=1), unit_rows(40, 2, seed=2), unit_rows(200, 2, seed=3)
    b = PrivateKV.builder(PrivacySpec(1e5, 1e-6), Bounds(1, 1, 1), NystromFeatures(public, 4.0), 2, seed=1)
    memory = b.add(keys, keys).release()
    assert relative_error(memory.attend(q, beta=2.0).output, exact_attention(q, keys, keys, 2.0)) < 0.02


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: NystromFeatures(torch.zeros(5, 9), 1.0), "d ≤ 8, got 9"),
        (lambda: NystromFeatures(torch.zeros(0, 2), 1.0), "1 to 1024 landmarks"),
        (lambda: NystromFeatures(torch.full((3, 2), float("nan")), 1.0), "must be finite"),
        (lambda: NystromFeatures(torch.zeros(3, 2), 0.0), "beta must be > 0"),
        (lambda: NystromFeatures(torch.ones(3, 2), 50.0).bind(Bounds(1, 2, 1)), "CodebookFeatures"),
    ],
)
def test_limits_are_told(make, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make()
