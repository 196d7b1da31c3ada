import torch

from references.steps import clouds, make_step
from splitveil.regularizers import entropy
from splitveil.regularizers.entropy.covariance import correlated_nats, principal
from splitveil.regularizers.entropy.members import assemble


def _slow(z: torch.Tensor, y: torch.Tensor, u: torch.Tensor, s: float) -> torch.Tensor:
    """½[log det(Ŝ/σ²) + tr(Ŝ⁻¹(Σ + σ²I)) − D] with dense matrices, class by class."""
    out = []
    for c in range(len(u)):
        mine = z[y == c]
        gap = mine - mine.mean(0)
        sigma = gap.T @ gap / len(mine)
        along = (gap @ u[c]).square().mean(0)
        beside = (gap - gap @ u[c] @ u[c].T).square().mean(0)
        eye = torch.eye(z.shape[1], dtype=z.dtype)
        model = u[c] @ torch.diag(along) @ u[c].T + torch.diag(beside) + s * eye
        trace = torch.trace(torch.linalg.solve(model, sigma + s * eye))
        out.append(0.5 * (torch.logdet(model / s) + trace - z.shape[1]))
    return torch.stack(out)


def test_value_and_gradient_are_those_of_dense_matrices() -> None:
    z, y = clouds(40, 7, 3)
    u = principal(z, y, torch.randn(3, 7, 2, dtype=torch.float64))
    fast, slow = z.clone().requires_grad_(), z.clone().requires_grad_()
    got, _ = correlated_nats(assemble(fast, y, n_classes=3, noise_var=0.01), u)
    want = _slow(slow, y, u, 0.01)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-9)
    got.sum().backward()
    want.sum().backward()
    torch.testing.assert_close(fast.grad, slow.grad, rtol=0, atol=1e-8)


def test_without_directions_it_is_the_plain_spread() -> None:
    z, y = clouds(30, 5, 2)
    members = assemble(z, y, n_classes=2, noise_var=0.01)
    nats, plain = correlated_nats(members, torch.zeros(2, 5, 3, dtype=torch.float64))
    torch.testing.assert_close(nats, plain, rtol=0, atol=1e-9)


def test_dimensions_that_move_together_cost_one_logarithm() -> None:
    rng = torch.Generator().manual_seed(0)
    shared = torch.randn(400, 1, generator=rng, dtype=torch.float64)
    z = shared.expand(-1, 6) + 1e-3 * torch.randn(400, 6, generator=rng, dtype=torch.float64)
    y = torch.zeros(400, dtype=torch.long)
    u = principal(z, y, torch.randn(1, 6, 1, generator=rng, dtype=torch.float64))
    nats, plain = correlated_nats(assemble(z, y, n_classes=1, noise_var=0.01), u)
    assert float(nats) < 0.3 * float(plain)


def test_principal_directions_are_those_of_the_covariance() -> None:
    rng = torch.Generator().manual_seed(1)
    z = torch.randn(500, 6, generator=rng, dtype=torch.float64) * torch.tensor([9.0, 5.0, 1, 1, 1, 1])
    y = torch.zeros(500, dtype=torch.long)
    u = principal(z, y, torch.randn(2, 6, 2, generator=rng, dtype=torch.float64))
    gap = z - z.mean(0)
    top = torch.linalg.eigh(gap.T @ gap).eigenvectors[:, -2:]
    torch.testing.assert_close((u[0].T @ top).square().sum(), torch.tensor(2.0).double(), rtol=0, atol=2e-2)
    assert float(u[1].abs().sum()) == 0


def test_the_regularizer_learns_its_directions_at_the_end_of_an_epoch() -> None:
    regularizer = entropy.correlated(rank=2)
    z, y = clouds(60, 6, 2)
    first = make_step(z, y, n_classes=2, step=0)
    regularizer.fit(first)
    before = float(regularizer(first).gauges["charged"])
    regularizer.end_epoch(first.progress)
    after = regularizer(first).gauges
    assert float(after["charged"]) < before
    assert float(after["P"]) == before
