import pytest
import torch

from references.attention import exact_attention, relative_error, unit_rows
from splitveil.check import UsageError
from splitveil.private_attention import (
    Bounds,
    PolynomialFeatures,
    PrivacySpec,
    PrivateKV,
    PublicPrior,
    PublicRegression,
)


def world(n: int, *, d: int = 8, shift: float = 1.0, seed: int = 0) -> torch.Tensor:
    """Unit vectors that lean one way, so that public rows tell something about private ones."""
    lean = torch.zeros(d, dtype=torch.float64)
    lean[0] = shift
    x = unit_rows(n, d, seed=seed) + lean
    return x / x.norm(dim=1, keepdim=True)


def released(keys: torch.Tensor, *, beta: float = 2.0, epsilon: float = 1.0, seed: int = 1) -> PrivateKV:
    d = keys.shape[1]
    products = world(200, seed=9) @ world(200, seed=8).T
    features = PolynomialFeatures(d, 2).fit_public(products, beta)
    b = PrivateKV.builder(PrivacySpec(epsilon, 1e-6), Bounds(1, 1, 1), features, d, seed=seed)
    return b.add(keys, keys).release()


def errors(n: int, public: torch.Tensor, **options) -> tuple[float, float]:
    keys, q = world(n, seed=1), world(60, seed=2)
    truth = exact_attention(q, keys, keys, 2.0)
    plain, better = [], []
    for seed in range(5):
        memory = released(keys, seed=seed, **options)
        plain.append(relative_error(memory.attend(q).output, truth))
        better.append(relative_error(PublicPrior(public, public).denoise(memory).attend(q).output, truth))
    return sum(plain) / 5, sum(better) / 5


def test_a_prior_halves_the_error_where_noise_dominates() -> None:
    plain, better = errors(150, world(1000, seed=3))
    assert better < 0.5 * plain


def test_a_prior_changes_little_where_signal_dominates() -> None:
    plain, better = errors(40_000, world(1000, seed=3), epsilon=8.0)
    assert better == pytest.approx(plain, rel=0.1)


def test_a_wrong_prior_does_not_spoil_a_strong_release() -> None:
    plain, better = errors(40_000, -world(1000, seed=3), epsilon=8.0)
    assert better < 1.15 * plain


def test_the_prior_mean_is_what_public_rows_add_on_average() -> None:
    public = world(50, seed=3)
    memory = released(public)
    b = PrivateKV.builder(memory.facts.spec, Bounds(1, 1, 1), memory.facts.kernel.features, 8, seed=0).add(
        public, public
    )
    assert torch.allclose(PublicPrior(public, public).mean(memory.facts), b._total.double() * memory.facts.step / 50)


def test_denoising_is_post_processing_and_is_noted() -> None:
    memory, public = released(world(400, seed=1)), world(50, seed=3)
    twin = PrivateKV(memory.facts, memory.moments.clone())
    one, other = (PublicPrior(public, public).denoise(m) for m in (memory, twin))
    assert torch.equal(one.moments, other.moments)
    assert "James–Stein" in one.report().text()
    assert one.facts.calibration == memory.facts.calibration


def test_public_regression_removes_most_of_the_bias_at_a_high_temperature() -> None:
    keys, q, public = world(60_000, seed=1), world(60, seed=2), world(2000, seed=3)
    truth = exact_attention(q, keys, keys, 6.0)
    memory = released(keys, beta=6.0, epsilon=8.0)
    plain = relative_error(memory.attend(q).output, truth)
    regressed = relative_error(PublicRegression(memory, public).attend(q), truth)
    assert regressed < 0.7 * plain


def test_public_regression_says_what_it_cannot_do() -> None:
    b = PrivateKV.builder(PrivacySpec(1, 1e-6), Bounds(1, 1, 1), PolynomialFeatures(2, 1).taylor(1.0), 1, heads=2)
    memory = b.add(torch.randn(5, 2, 2), torch.randn(5, 2, 1)).release()
    with pytest.raises(UsageError, match="one head, got 2"):
        PublicRegression(memory, torch.randn(5, 2))


def test_a_prior_needs_rows() -> None:
    with pytest.raises(UsageError, match="at least one row"):
        PublicPrior(torch.zeros(0, 2), torch.zeros(0, 2))
