"""On an accelerator: the same bits in, the same answers out."""

import pytest
import torch

from references.attention import unit_rows
from splitveil.check import UsageError
from splitveil.private_attention import Bounds, NystromFeatures, PolynomialFeatures, PrivacySpec, PrivateKV

needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
FEATURES = {"polynomial": PolynomialFeatures(4, 3).taylor(2.0), "nystrom": NystromFeatures(unit_rows(40, 4), 2.0)}


def released(features: str, device: str) -> PrivateKV:
    keys, values = unit_rows(3000, 4, seed=1), unit_rows(3000, 3, seed=2)
    b = PrivateKV.builder(PrivacySpec(1.0, 1e-6), Bounds(1, 1, 1), FEATURES[features], 3, seed=1)
    return b.add(keys.to(device), values.to(device)).release()


@pytest.mark.parametrize("features", [pytest.param(name, marks=needs_gpu) for name in FEATURES])
def test_a_release_has_the_same_bits_as_on_the_cpu(features: str) -> None:
    assert torch.equal(released(features, "cuda").moments.cpu(), released(features, "cpu").moments)


@pytest.mark.parametrize("features", [pytest.param(name, marks=needs_gpu) for name in FEATURES])
def test_captured_queries_are_answered_as_any_other(features: str) -> None:
    memory, q = released(features, "cuda"), unit_rows(8, 4, seed=5).float().cuda()
    captured = memory.capture(8, device="cuda")
    for got, wanted in zip(captured(q), memory.attend(q), strict=True):
        assert torch.allclose(got.double(), wanted.double(), rtol=1e-5)
    again = captured(q.flip(0))
    assert torch.allclose(again.output, memory.attend(q.flip(0)).output, rtol=1e-5)


def test_a_graph_on_the_cpu_is_refused() -> None:
    with pytest.raises(UsageError, match="needs a CUDA device"):
        released("polynomial", "cpu").capture(4, device="cpu")
