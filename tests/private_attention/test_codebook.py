import pytest
import torch

from references.attention import clustered_rows, exact_attention, relative_error, unit_rows
from splitveil.check import UsageError
from splitveil.private_attention import Bounds, CodebookFeatures, PolynomialFeatures, PrivacySpec, PrivateKV
from splitveil.private_attention.lattice import FEATURE_BITS


def test_every_key_goes_to_its_nearest_centroid() -> None:
    centroids, keys = unit_rows(7, 3, seed=1) * 0.8, unit_rows(100, 3, seed=2)
    lifted = CodebookFeatures(centroids, 12.0).bind(Bounds(1, 1, 1)).lift(keys.T.contiguous())
    assert torch.equal(lifted.argmax(0), torch.cdist(keys, centroids).argmin(1))
    assert set(lifted.unique().tolist()) == {0.0, 2.0**FEATURE_BITS}


def test_it_beats_a_polynomial_where_the_kernel_is_sharp() -> None:
    keys, q, public = (clustered_rows(n, 3, seed=s) for s, n in enumerate((30_000, 40, 600)))
    truth, spec, bounds = exact_attention(q, keys, keys, 16.0), PrivacySpec(2.0, 1e-6), Bounds(1, 1, 1)
    error = {}
    for features in (
        CodebookFeatures.fit_public(public, 100, 16.0),
        PolynomialFeatures(3, 3).fit_public(q @ public.T, 16.0),
    ):
        memory = PrivateKV.builder(spec, bounds, features, 3, seed=1).add(keys, keys).release()
        error[type(features)] = relative_error(memory.attend(q).output, truth)
    assert error[CodebookFeatures] < 0.1
    assert error[CodebookFeatures] < 0.5 * error[PolynomialFeatures]


def test_a_very_sharp_kernel_does_not_overflow() -> None:
    kernel = CodebookFeatures(unit_rows(5, 2), 1e4).bind(Bounds(1, 1, 1))
    assert torch.isfinite(kernel.basis(unit_rows(3, 2).float(), 1e4)).all()


def test_limits_are_told() -> None:
    with pytest.raises(UsageError, match="non-empty finite"):
        CodebookFeatures(torch.zeros(0, 2), 1.0)
    with pytest.raises(UsageError, match="cells must lie in"):
        CodebookFeatures.fit_public(torch.zeros(4, 2), 9, 1.0)
