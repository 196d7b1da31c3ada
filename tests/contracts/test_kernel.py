"""Every kernel: bounded features, rows on their own, ψᵀM as folded, and a rebuild from its settings."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from references.attention import unit_rows
from splitveil.private_attention import Bounds, CodebookFeatures, NystromFeatures, PolynomialFeatures
from splitveil.private_attention.facts import _kernel
from splitveil.private_attention.kernel import Kernel
from splitveil.private_attention.lattice import FEATURE_BITS, FEATURE_CAP, to_unit_ball

BOUNDS = Bounds(key_norm=0.8, query_norm=1.5, value_norm=1.0)
D = 3
PUBLIC = unit_rows(60, D, seed=3) * 0.7
KERNELS = {
    "least squares": PolynomialFeatures(D, 3).fit_public(PUBLIC @ unit_rows(50, D, seed=4).T, 2.0),
    "taylor": PolynomialFeatures(D, 2).taylor(1.5),
    "constant": PolynomialFeatures(D, 0).taylor(1.0),
    "nystrom": NystromFeatures(PUBLIC, 2.0),
    "codebook": CodebookFeatures.fit_public(PUBLIC, 12, 15.0),
}


@pytest.fixture(params=KERNELS.values(), ids=KERNELS.keys())
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return request.param.bind(BOUNDS)


def phi(kernel: Kernel, keys: torch.Tensor) -> torch.Tensor:
    lifted = kernel.lift(to_unit_ball(keys, BOUNDS.key_norm).T.contiguous())
    return lifted * (kernel.norm / 2**FEATURE_BITS)


def keys(n: int = 200) -> torch.Tensor:
    wild = torch.tensor([[1e300, -1e300, 0.0], [float("nan"), 0, 0], [float("inf"), 0, 0], [0.0, 0.0, 0.0]]).double()
    return torch.cat([unit_rows(n, D, seed=5) * torch.linspace(0, 2, n)[:, None], wild])


def test_lifted_rows_never_exceed_the_norm(kernel: Kernel) -> None:
    squares = kernel.lift(to_unit_ball(keys(), BOUNDS.key_norm).T.contiguous()).square().sum(0)
    assert float(squares.max()) <= FEATURE_CAP * (1 + 1e-5)  # the encoder enforces the last digits on integers


def test_inner_products_never_fall_below_the_least(kernel: Kernel) -> None:
    lifted = phi(kernel, keys())
    assert float((lifted.T @ lifted).min()) >= kernel.least_inner - 1e-9 * kernel.norm**2


def test_a_row_is_lifted_on_its_own(kernel: Kernel) -> None:
    rows = keys(61)
    whole = phi(kernel, rows)
    assert torch.equal(whole, torch.cat([phi(kernel, rows[i : i + 1]) for i in range(len(rows))], dim=1))
    assert torch.equal(whole.flip(1), phi(kernel, rows.flip(0)))


def test_answers_approach_the_exponential(kernel: Kernel) -> None:
    q, k = unit_rows(20, D, seed=6) * 0.4, PUBLIC
    got = kernel.basis(q, kernel.beta) @ kernel.fold(phi(kernel, k), kernel.beta)
    wanted = (kernel.beta * q @ k.T).exp()
    got, wanted = got / got.sum(1, keepdim=True), wanted / wanted.sum(1, keepdim=True)
    uniform = torch.full_like(wanted, 1 / wanted.shape[1])
    error = float((got - wanted).norm())
    assert error <= (1 + 1e-9 if kernel.n_features == 1 else 0.5) * float((uniform - wanted).norm())


def test_query_norm_is_the_noise_of_an_answer(kernel: Kernel) -> None:
    q = unit_rows(1, D, seed=7)
    columns = kernel.fold(torch.eye(kernel.n_features, dtype=torch.float64), kernel.beta)
    psi = (kernel.basis(q, kernel.beta) @ columns)[0]
    assert float(kernel.query_norm(q, kernel.basis(q, kernel.beta), kernel.beta)) == pytest.approx(float(psi.norm()))


def test_counting_weights_count_rows(kernel: Kernel) -> None:
    count = float((kernel.counting() @ phi(kernel, PUBLIC)).sum())
    assert count == pytest.approx(len(PUBLIC), rel=1e-3)


def test_gradients_reach_the_query(kernel: Kernel) -> None:
    if kernel.n_features == 1:
        pytest.skip("a constant has no gradient")
    q = unit_rows(2, D, seed=8).requires_grad_()
    kernel.basis(q, kernel.beta).sum().backward()
    assert q.grad is not None
    assert torch.isfinite(q.grad).all()


def test_settings_and_tensors_rebuild_the_kernel(kernel: Kernel) -> None:
    again = _kernel(kernel.settings(), kernel.tensors())
    q = unit_rows(3, D, seed=9)
    assert torch.equal(again.basis(q, 1.0), kernel.basis(q, 1.0))
    assert torch.equal(phi(again, PUBLIC), phi(kernel, PUBLIC))
    assert (again.norm, again.least_inner, again.n_features) == (kernel.norm, kernel.least_inner, kernel.n_features)


def test_the_description_is_one_sentence(kernel: Kernel) -> None:
    assert "\n" not in kernel.describe()
    assert len(kernel.describe()) > 40


class _Copies(TorchDispatchMode):
    """Counts tensors that are copied to another device or precision."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


def test_a_second_query_copies_nothing_so_that_it_can_be_captured(kernel: Kernel) -> None:
    q = unit_rows(4, D, seed=6).float()
    kernel.basis(q, kernel.beta)
    with _Copies() as copies:
        kernel.basis(q, kernel.beta)
    assert copies.count == 0


def test_a_query_in_inference_mode_leaves_gradients_to_later_ones(kernel: Kernel) -> None:
    q = unit_rows(4, D, seed=6).float() * 0.5
    with torch.inference_mode():
        kernel.basis(q, kernel.beta)
    later = q.clone().requires_grad_()
    (kernel.basis(later, kernel.beta).sum() + later.sum()).backward()  # a constant kernel has no slope of its own
    assert bool(later.grad.isfinite().all())
