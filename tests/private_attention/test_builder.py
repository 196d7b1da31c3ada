import gc
import pickle

import pytest
import torch

from references.attention import unit_rows
from splitveil.check import RunError, UsageError
from splitveil.private_attention import Bounds, Builder, PolynomialFeatures, PrivacySpec, PrivateKV
from splitveil.private_attention.lattice import MOST_ROWS

BOUNDS = Bounds(1.0, 1.0, 1.0)
FEATURES = PolynomialFeatures(4, 2).taylor(2.0)


def builder(**options) -> Builder:
    spec = PrivacySpec(1.0, 1e-6, **{k: options.pop(k) for k in ("unit", "adjacency") if k in options})
    return PrivateKV.builder(spec, BOUNDS, FEATURES, 3, **options)


def rows(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return unit_rows(n, 4, seed=1), unit_rows(n, 3, seed=2)


def test_batches_and_order_do_not_change_the_release() -> None:
    keys, values = rows(300)
    whole = builder(seed=1).add(keys, values).release()
    parts = builder(seed=1)
    for chunk in torch.randperm(300).chunk(7):
        parts.add(keys[chunk], values[chunk])
    assert torch.equal(whole.moments, parts.release().moments)


def test_a_second_release_and_late_rows_are_refused() -> None:
    b = builder().add(*rows(10))
    b.release()
    with pytest.raises(UsageError, match="second release"):
        b.release()
    with pytest.raises(UsageError, match="start a new builder"):
        b.add(*rows(1))


def test_noise_is_fixed_before_rows_are_seen() -> None:
    b = builder()
    before = b.facts.calibration
    b.add(*rows(1000))
    assert b.facts.calibration == before


def test_an_empty_memory_is_pure_noise_and_still_a_release() -> None:
    memory = builder(seed=3).release()
    spread = float(memory.moments.std()) / memory.facts.noise_std
    assert 0.7 < spread < 1.3


def test_noise_of_a_release_has_the_stated_spread() -> None:
    keys, values = rows(50)
    exact = builder(seed=0).add(keys, values)._total.double() * builder().facts.step
    noise = [builder(seed=s).add(keys, values).release().moments - exact for s in range(60)]
    std = float(torch.stack(noise).std()) / builder().facts.noise_std
    assert std == pytest.approx(1.0, abs=0.04)  # 60 × 60 numbers: 4 standard errors


def test_nothing_that_a_builder_or_memory_reaches_is_a_row_or_an_exact_sum() -> None:
    keys, values = rows(64)
    b = builder()
    b.add(keys.clone(), values.clone())
    exact = b._total.clone()
    memory = b.release()
    found = [t for root in (b, memory) for t in reachable_tensors(root)]
    assert found
    for tensor in found:
        assert tensor.numel() < 64 * 3 or tensor.shape[0] != 64
        assert not _holds(tensor, exact)
        assert not any(_holds(tensor, row) for row in (*keys[:5], *values[:5]))


def test_the_exact_total_is_overwritten_not_only_dropped() -> None:
    b = builder().add(*rows(64))
    total = b._total
    b.release()
    assert total.abs().sum() == 0


def test_neither_builder_nor_memory_is_pickled() -> None:
    b = builder().add(*rows(8))
    with pytest.raises(UsageError, match="not pickled"):
        pickle.dumps(b)
    with pytest.raises(UsageError, match="not pickled"):
        pickle.dumps(b.release())


def test_rows_with_nan_count_as_rows_at_the_center() -> None:
    bad = torch.full((5, 4), float("nan")), torch.full((5, 3), float("inf"))
    clean = torch.zeros(5, 4), torch.zeros(5, 3)
    assert torch.equal(builder(seed=1).add(*bad).release().moments, builder(seed=1).add(*clean).release().moments)


def test_documents_must_come_whole_and_named() -> None:
    keys, values = rows(4)
    b = builder(unit="document")
    with pytest.raises(UsageError, match="needs unit_ids"):
        b.add(keys, values)
    b.add(keys, values, ["a", "a", "b", "c"])
    with pytest.raises(UsageError, match="two calls"):
        b.add(keys[:1], values[:1], ["b"])
    with pytest.raises(UsageError, match='unit="row"'):
        builder().add(keys, values, ["a", "b", "c", "d"])


def test_too_many_rows_are_refused_before_a_sum_can_overflow() -> None:
    b = builder()
    b._n_rows = MOST_ROWS - 1
    with pytest.raises(RunError, match="at most"):
        b.add(*rows(2))


def test_a_repeated_document_counts_once_under_its_clip() -> None:
    keys, values = rows(1)
    once = builder(seed=1, unit="document").add(keys, values, ["a"])._total.double()
    many = builder(seed=1, unit="document").add(keys.repeat(99, 1), values.repeat(99, 1), ["a"] * 99)._total.double()
    assert float(many.norm()) <= 2**35
    assert torch.allclose(many / many.norm(), once / once.norm(), atol=1e-4)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"heads": 0}, "heads ≥ 1"),
        ({"count": 0.0}, "count must be > 0"),
    ],
)
def test_wrong_options_are_told(options: dict, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        builder(**options)


def test_a_center_of_the_wrong_width_is_told() -> None:
    with pytest.raises(UsageError, match=r"key_center must have shape \(4,\)"):
        PrivateKV.builder(PrivacySpec(1, 1e-6), Bounds(1, 1, 1, key_center=[0.0]), FEATURES, 3)


def reachable_tensors(root: object) -> list[torch.Tensor]:
    """Every tensor found by following references from an object, through the package's own objects and containers."""
    seen: dict[int, object] = {}
    todo = [root]
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, type) or type(thing).__name__ == "module" or callable(thing):
            continue
        seen[id(thing)] = thing
        todo.extend(gc.get_referents(thing))
        todo.extend(getattr(thing, "__dict__", {}).values())
    return [t for t in seen.values() if isinstance(t, torch.Tensor)]


def _holds(tensor: torch.Tensor, part: torch.Tensor) -> bool:
    flat, wanted = tensor.double().flatten(), part.double().flatten()
    if len(flat) < len(wanted) or not len(wanted):
        return False
    windows = flat.unfold(0, len(wanted), 1)
    return bool((windows - wanted).abs().amax(1).min() == 0)
