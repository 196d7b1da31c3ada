import pytest
import torch

from splitveil.check import UsageError
from splitveil.private_attention import Bounds, PrivacySpec


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"epsilon": 0.0}, "epsilon must be > 0"),
        ({"epsilon": float("nan")}, "epsilon must be > 0"),
        ({"delta": 0.0}, r"delta must lie in \(0, 1\)"),
        ({"delta": 1.0}, r"delta must lie in \(0, 1\)"),
        ({"adjacency": "add_remov"}, "did you mean 'add_remove'"),
        ({"unit": "rows"}, "did you mean 'row'"),
        ({"document_rows": -1.0}, "document_rows must be > 0"),
        ({"shares": 0}, "shares must be ≥ 1"),
    ],
)
def test_wrong_specs_are_told_in_one_line(options: dict, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {"epsilon": 1.0, "delta": 1e-6} | options
    spec = object.__new__(PrivacySpec)
    for name, default in (("adjacency", "add_remove"), ("unit", "row"), ("document_rows", 1.0), ("shares", 1)):
        object.__setattr__(spec, name, arguments.get(name, default))
    for name in ("epsilon", "delta"):
        object.__setattr__(spec, name, arguments[name])
    with pytest.raises(UsageError, match=says) as error:
        spec.__post_init__()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["key_norm", "query_norm", "value_norm"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_norms_must_be_positive_and_finite(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"{name} must be > 0"):
        Bounds(**({"key_norm": 1.0, "query_norm": 1.0, "value_norm": 1.0} | {name: value}))


def test_centers_must_be_finite_and_are_kept_as_float64() -> None:
    with pytest.raises(UsageError, match="key_center must be finite"):
        Bounds(1.0, 1.0, 1.0, key_center=[float("nan")])
    assert Bounds(1.0, 1.0, 1.0, value_center=[1.0, 2.0]).value_center.dtype == torch.float64


def test_bounds_from_public_rows_hold_for_nearly_all_of_them() -> None:
    keys, values = torch.randn(1000, 5) + 3, torch.randn(1000, 2) * 4
    bounds = Bounds.from_public(keys, values, quantile=0.9)
    inside = (keys.double() - bounds.key_center).norm(dim=1) <= bounds.key_norm
    assert float(inside.double().mean()) == pytest.approx(0.9, abs=0.002)
    assert torch.allclose(bounds.value_center, values.double().mean(0))
    assert bounds.query_norm == pytest.approx(float(keys.double().norm(dim=1).max()))
    assert bounds.largest_inner == bounds.query_norm * bounds.key_norm


def test_public_rows_that_are_all_equal_give_no_bounds() -> None:
    with pytest.raises(UsageError, match="not all equal"):
        Bounds.from_public(torch.ones(5, 2), torch.ones(5, 2))


def test_settings_rebuild_the_bounds() -> None:
    bounds = Bounds(1.0, 2.0, 3.0, key_center=torch.tensor([[0.1, 0.2], [0.3, 0.4]]))
    again = Bounds(**bounds.settings())
    assert again.settings() == bounds.settings()
    assert torch.equal(again.key_center, bounds.key_center)
