import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.mixture import GaussianMixture
from torch import Tensor

from references import mixtures as slow
from splitveil.mixtures import Mixture, fit_mixture, log_density, log_joint


def _rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _world(seed: int, n: int = 900, dim: int = 4) -> tuple[Tensor, Tensor]:
    rng = _rng(seed)
    labels = torch.randint(2, (n,), generator=rng)
    sub = torch.randint(3, (n,), generator=rng)
    center = 3 * torch.randn(2, 3, dim, generator=rng, dtype=torch.float64)
    scale = 0.5 + torch.rand(2, 3, dim, generator=rng, dtype=torch.float64)
    noise = torch.randn(n, dim, generator=rng, dtype=torch.float64)
    return center[labels, sub] + scale[labels, sub] * noise, labels


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_log_density_is_that_of_torch_distributions(covariance: str) -> None:
    rng = _rng(3)
    mean = torch.randn(2, 3, 4, generator=rng, dtype=torch.float64)
    root = torch.randn(2, 3, 4, 4, generator=rng, dtype=torch.float64)
    full = root @ root.mT + torch.eye(4)
    var = full.diagonal(dim1=-2, dim2=-1) if covariance == "diagonal" else full
    mixture = Mixture(torch.randn(2, 3, generator=rng, dtype=torch.float64).log_softmax(-1), mean, var)
    points, labels = torch.randn(11, 4, generator=rng, dtype=torch.float64), torch.arange(11) % 2
    got = log_density(points, labels, mixture, noise_var=0.3, chunk=4)
    for i, c in enumerate(labels.tolist()):
        noisy = [(torch.diag(v) if covariance == "diagonal" else v) + 0.3 * torch.eye(4).double() for v in var[c]]
        want = slow.log_density(points[i], mixture.log_weight[c], mean[c], noisy)
        assert float(got[i]) == pytest.approx(want, abs=1e-10)


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize("seed", range(3))
def test_likelihood_is_that_of_scikit_learn_or_better(seed: int, covariance: str) -> None:
    points, labels = _world(seed)
    kind = "diag" if covariance == "diagonal" else "full"
    fitted = fit_mixture(
        points,
        labels,
        n_classes=2,
        n_groups=3,
        generator=_rng(seed),
        covariance=covariance,
        tolerance=1e-7,
        max_rounds=200,
    )
    theirs = np.concatenate(
        [
            GaussianMixture(3, covariance_type=kind, n_init=3, random_state=seed, tol=1e-6, max_iter=300)
            .fit(points[labels == c].numpy())
            .score_samples(points[labels == c].numpy())
            for c in range(2)
        ]
    ).mean()
    assert float(log_density(points, labels, fitted.mixture).mean()) >= theirs - 1e-3


@given(
    seed=st.integers(0, 999),
    n_groups=st.integers(1, 4),
    floor=st.sampled_from([1e-6, 0.3, 2.0]),
    covariance=st.sampled_from(["diagonal", "full"]),
)
@settings(max_examples=25, deadline=None)
def test_em_never_lowers_the_likelihood(seed: int, n_groups: int, floor: float, covariance: str) -> None:
    points, labels = _world(seed, n=60, dim=3)
    fitted = fit_mixture(
        points, labels, n_classes=2, n_groups=n_groups, generator=_rng(),
        floor=floor, covariance=covariance, tolerance=-1.0, max_rounds=15,
    )  # fmt: skip
    assert len(fitted.history) == 15
    assert (np.diff(fitted.history) >= -1e-9).all()
    var = fitted.mixture.var
    least = var.min() if covariance == "diagonal" else torch.linalg.eigvalsh(var).min()
    assert float(least) >= floor * (1 - 1e-9)


def test_history_is_the_mean_log_likelihood() -> None:
    points, labels = _world(5, n=80)
    fitted = fit_mixture(points, labels, n_classes=2, n_groups=2, generator=_rng(), max_rounds=50, tolerance=1e-5)
    now = float(log_density(points, labels, fitted.mixture).mean())
    assert now == pytest.approx(fitted.history[-1], abs=1e-9)


def test_an_absent_class_keeps_its_mixture() -> None:
    points, labels = _world(6, n=50)
    start = Mixture(torch.zeros(3, 1).double(), torch.full((3, 1, 4), 7.0).double(), torch.ones(3, 1, 4).double())
    fitted = fit_mixture(points, labels, n_classes=3, n_groups=1, generator=_rng(), start=start)
    assert fitted.mixture.mean[2].unique().tolist() == [7.0]
    torch.testing.assert_close(fitted.mixture.mean[0, 0], points[labels == 0].mean(0))


def test_log_joint_gives_gradients_to_points_and_mixture() -> None:
    rng = _rng(8)
    labels = torch.tensor([0, 1, 1])
    inputs = (
        torch.randn(3, 2, generator=rng, dtype=torch.float64).requires_grad_(),
        torch.randn(2, 2, 2, generator=rng, dtype=torch.float64).requires_grad_(),
        torch.rand(2, 2, 2, generator=rng, dtype=torch.float64).requires_grad_(),
    )
    weight = torch.full((2, 2), -0.7, dtype=torch.float64)

    def joint(points: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return log_joint(points, labels, Mixture(weight, mean, var), noise_var=0.1)

    assert torch.autograd.gradcheck(joint, inputs)
