import numpy as np
import pytest
import torch

from references.attention import unit_rows
from splitveil.check import UsageError
from splitveil.private_attention import Bounds, CodebookFeatures, NystromFeatures, PolynomialFeatures, PrivacySpec
from splitveil.private_attention.builder import make_encoder
from splitveil.private_attention.encoder import Encoder, group_rows

BOUNDS = Bounds(1.0, 1.0, 1.0, key_center=[0.1, 0.0, -0.1, 0.2], value_center=[0.0, 0.1])
PUBLIC = unit_rows(50, 4, seed=1)
FEATURES = {
    "polynomial": PolynomialFeatures(4, 3).taylor(2.0),
    "nystrom": NystromFeatures(PUBLIC, 2.0),
    "codebook": CodebookFeatures(PUBLIC[:20], 12.0),
}


@pytest.fixture(params=FEATURES.values(), ids=FEATURES.keys())
def encoder(request: pytest.FixtureRequest) -> Encoder:
    return make_encoder(PrivacySpec(1.0, 1e-6), BOUNDS, request.param, 2, heads=1, count=None)


def rows(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(2)
    return torch.randn(n, 1, 4, generator=source), torch.randn(n, 1, 2, generator=source)


def test_totals_are_the_same_bits_for_every_order_batch_and_thread_count(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, values = rows(3001)
    whole = encoder.rows(keys, values)
    order = torch.randperm(3001, generator=torch.Generator().manual_seed(3))
    assert torch.equal(whole, encoder.rows(keys[order], values[order]))
    parts = [encoder.rows(keys[a:b], values[a:b]) for a, b in ((0, 1), (1, 18), (18, 1500), (1500, 3001))]
    assert torch.equal(whole, sum(parts))
    monkeypatch.setattr("splitveil.private_attention.encoder.CHUNK_CELLS", 700)
    assert torch.equal(whole, encoder.rows(keys, values))
    monkeypatch.undo()
    torch.set_num_threads(2)
    assert torch.equal(whole, encoder.rows(keys, values))


def test_sums_are_exact_at_the_largest_span() -> None:
    """2¹⁷ equal rows at the bounds: each cell is 2¹⁷ times that of one row, to the last digit."""
    e = make_encoder(
        PrivacySpec(1, 1e-6), Bounds(1, 1, 1), PolynomialFeatures(1, 1).taylor(1.0), 1, heads=1, count=None
    )
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    assert torch.equal(e.rows(one.repeat(2**17, 1, 1), one.repeat(2**17, 1, 1)), e.rows(one, one) * 2**17)


def test_one_more_row_changes_the_total_by_that_row_alone(encoder: Encoder) -> None:
    keys, values = rows(501)
    gained = encoder.rows(keys, values) - encoder.rows(keys[:-1], values[:-1])
    assert torch.equal(gained, encoder.rows(keys[-1:], values[-1:]))


def test_totals_agree_with_a_float_sum_to_the_truncation(encoder: Encoder) -> None:
    keys, values = rows(200)
    exact, phi = encoder.features(keys[:, 0])
    v = (values[:, 0].double() - BOUNDS.value_center).clone()
    v /= v.norm(dim=1, keepdim=True).clamp_min(1.0)
    u = torch.cat([v, torch.full((200, 1), encoder.count)], dim=1)
    step = encoder.kernel.norm * (1 + encoder.count**2) ** 0.5 / 2**35
    got = encoder.rows(keys, values)[0].double() * step
    assert torch.allclose(got, phi @ u, atol=200 * encoder.kernel.norm * 2 * 2.0**-15)
    assert float(exact.norm(dim=1).max()) <= 1 + 1e-12


def test_a_document_is_the_same_in_any_company_and_row_order(encoder: Encoder) -> None:
    keys, values = rows(12)
    ids = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]
    together = encoder.documents(keys, values, ids, 2**35)
    apart = sum(encoder.documents(keys[d::3], values[d::3], [d] * 4, 2**35) for d in range(3))
    turned = encoder.documents(keys.flip(0), values.flip(0), ids[::-1], 2**35)
    assert torch.equal(together, apart)
    assert torch.equal(together, turned)


def test_every_head_has_its_own_center() -> None:
    centers = Bounds(1.0, 1.0, 1.0, key_center=torch.tensor([[0.0, 0.0], [5.0, 5.0]]))
    encoder = make_encoder(PrivacySpec(1, 1e-6), centers, PolynomialFeatures(2, 1).taylor(1.0), 1, heads=2, count=None)
    key, value = torch.tensor([[[0.2, 0.3], [5.2, 5.3]]]), torch.ones(1, 2, 1)
    total = encoder.rows(key.double(), value.double())
    assert (total[0] - total[1]).abs().max() <= 2**16  # equal but for the rounding of 5.2 − 5


@pytest.mark.parametrize(
    ("keys", "values", "says"),
    [
        ((3, 5), (3, 2), r"keys must be \(n, 4\)"),
        ((3, 4), (3, 3), r"values \(n, 2\)"),
        ((3, 4), (2, 2), "as many rows"),
        ((3, 2, 4), (3, 2, 2), "keys must be"),
    ],
)
def test_wrong_shapes_are_told_in_one_line(encoder: Encoder, keys: tuple, values: tuple, says: str) -> None:
    with pytest.raises(UsageError, match=says) as error:
        encoder.check(torch.zeros(keys), torch.zeros(values))
    assert "\n" not in str(error.value)


def test_ids_may_be_words_or_numbers_and_must_name_every_row() -> None:
    assert group_rows(["a", "b", "a"], 3) == {"a": [0, 2], "b": [1]}
    assert group_rows(torch.tensor([4, 4]), 2) == {4: [0, 1]}
    assert [repr(unit) for unit in group_rows(list(np.array([5, 6])), 2)] == ["5", "6"]
    with pytest.raises(UsageError, match="each of the 3 rows, got 2"):
        group_rows([1, 2], 3)
