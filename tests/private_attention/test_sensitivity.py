"""Adversarial searches for two neighbors farther apart than Δ, in exact integers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from references.attention import integer_square_norm, unit_rows
from splitveil.check import UsageError
from splitveil.dp import delta_of
from splitveil.private_attention import Bounds, CodebookFeatures, NystromFeatures, PolynomialFeatures, PrivacySpec
from splitveil.private_attention.builder import make_encoder
from splitveil.private_attention.encoder import Encoder, shorten
from splitveil.private_attention.lattice import FEATURE_CAP, VALUE_CAP
from splitveil.private_attention.sampler import OpenDPSampler, RejectionSampler
from splitveil.private_attention.sensitivity import calibrate, default_count, document_cap, row_sensitivity2

D, DV = 2, 2
BOUNDS = Bounds(key_norm=0.9, query_norm=1.4, value_norm=0.7)
PUBLIC = unit_rows(40, D, seed=1) * 0.8
FEATURES = {
    "least squares": PolynomialFeatures(D, 2).fit_public(PUBLIC @ unit_rows(40, D, seed=2).T, 2.0),
    "odd": PolynomialFeatures(D, 3).taylor(3.0),
    "linear": PolynomialFeatures(D, 1).taylor(2.0),
    "nystrom": NystromFeatures(PUBLIC, 1.5),
    "codebook": CodebookFeatures(PUBLIC[:8], 12.0),
}


def encoder(features: str, adjacency: str) -> tuple[PrivacySpec, Encoder]:
    spec = PrivacySpec(1.0, 1e-6, adjacency=adjacency)
    return spec, make_encoder(spec, BOUNDS, FEATURES[features], DV, heads=1, count=None)


def distance2(e: Encoder, one: tuple[torch.Tensor, torch.Tensor], other: tuple[torch.Tensor, torch.Tensor]) -> int:
    return integer_square_norm(e.rows(*one) - e.rows(*other))


def extreme_rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Keys around the circle at, inside and far beyond the bound, crossed with values at theirs and wild numbers."""
    turn = torch.linspace(0, 2 * math.pi, 13, dtype=torch.float64)[:-1]
    circle = torch.stack([turn.cos(), turn.sin()], dim=1)
    keys = torch.cat([circle * r for r in (0.9, 0.9 * (1 + 2.0**-52), 0.45, 1e200)] + [torch.zeros(1, 2).double()])
    wild = torch.tensor([[float("nan"), 1.0], [float("inf"), 0.0], [1e308, 1e308]]).double()
    keys = torch.cat([keys, wild])
    values = torch.cat([circle[::3] * 0.7, circle[::4] * 1e9, torch.zeros(1, 2).double()])
    pairs = torch.cartesian_prod(torch.arange(len(keys)), torch.arange(len(values)))
    return keys[pairs[:, 0]][:, None], values[pairs[:, 1]][:, None]


@pytest.mark.parametrize("features", FEATURES)
def test_no_row_adds_more_than_the_sensitivity(features: str) -> None:
    spec, e = encoder(features, "add_remove")
    keys, values = extreme_rows()
    bound = row_sensitivity2(spec, e.kernel, BOUNDS.value_norm, e.count)
    most = max(integer_square_norm(e.rows(keys[i : i + 1], values[i : i + 1])) for i in range(0, len(keys), 3))
    assert most <= bound == FEATURE_CAP * VALUE_CAP
    assert most > 0.9 * bound or features == "nystrom"  # the search comes close: the bound is not idle


@pytest.mark.parametrize("features", FEATURES)
def test_no_replacement_moves_the_total_more_than_the_sensitivity(features: str) -> None:
    spec, e = encoder(features, "replace_one")
    keys, values = extreme_rows()
    bound = row_sensitivity2(spec, e.kernel, BOUNDS.value_norm, e.count)
    singles = torch.stack([e.rows(keys[i : i + 1], values[i : i + 1])[0].double() for i in range(len(keys))])
    flat = singles.reshape(len(singles), -1)
    rough = torch.cdist(flat, flat)  # float: only to find the worst pairs, which are then measured in integers
    worst = rough.flatten().topk(20).indices
    most = 0
    for pair in worst.tolist():
        i, j = divmod(pair, len(flat))
        most = max(most, distance2(e, (keys[i : i + 1], values[i : i + 1]), (keys[j : j + 1], values[j : j + 1])))
    assert most <= bound
    if features in {"least squares", "odd", "linear", "codebook"}:
        assert most > 0.9 * bound


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_random_pairs_never_exceed_either_sensitivity(data: st.DataObject) -> None:
    number = st.floats(allow_nan=True, allow_infinity=True) | st.floats(-2, 2)
    vector = st.lists(number, min_size=2, max_size=2)
    features = data.draw(st.sampled_from(sorted(FEATURES)))
    rows = [torch.tensor([[data.draw(vector)]], dtype=torch.float64) for _ in range(4)]
    for adjacency in ("add_remove", "replace_one"):
        spec, e = encoder(features, adjacency)
        bound = row_sensitivity2(spec, e.kernel, BOUNDS.value_norm, e.count)
        if adjacency == "add_remove":
            assert integer_square_norm(e.rows(rows[0], rows[1])) <= bound
        else:
            assert distance2(e, (rows[0], rows[1]), (rows[2], rows[3])) <= bound


@pytest.mark.parametrize("features", ["least squares", "odd", "codebook"])
def test_hill_climbing_does_not_beat_the_replacement_bound(features: str) -> None:
    """Gradient-free ascent on the integer distance, starting from the worst pair of the formula."""
    spec, e = encoder(features, "replace_one")
    bound = row_sensitivity2(spec, e.kernel, BOUNDS.value_norm, e.count)
    source = torch.Generator().manual_seed(3)
    state = torch.randn(4, 1, 1, 2, generator=source, dtype=torch.float64)
    best = distance2(e, (state[0], state[1]), (state[2], state[3]))
    for step in range(250):
        width = 0.5 * 0.985**step
        other = state + width * torch.randn(state.shape, generator=source, dtype=torch.float64)
        found = distance2(e, (other[0], other[1]), (other[2], other[3]))
        if found >= best:
            state, best = other, found
    assert best <= bound
    assert best > 0.5 * bound


def test_truncation_can_raise_a_distance_so_the_margin_is_needed() -> None:
    """With κ_min taken at face value, some truncated pair would exceed Δ (or come within a few steps of it)."""
    spec, e = encoder("linear", "replace_one")
    exact = e.kernel.least_inner / e.kernel.norm**2
    tight = 2 * FEATURE_CAP * VALUE_CAP - 2 * min(
        x * y for x in (exact * FEATURE_CAP, FEATURE_CAP) for y in (2 * _c2(e) - VALUE_CAP, VALUE_CAP)
    )
    assert row_sensitivity2(spec, e.kernel, BOUNDS.value_norm, e.count) > tight


def _c2(e: Encoder) -> int:
    from splitveil.private_attention.lattice import count_integer

    return count_integer(BOUNDS.value_norm, e.count) ** 2


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
@pytest.mark.parametrize("document_rows", [0.3, 1.0, 2.5])
def test_no_document_exceeds_its_clip(adjacency: str, document_rows: float) -> None:
    spec = PrivacySpec(1.0, 1e-6, adjacency=adjacency, unit="document", document_rows=document_rows)
    e = make_encoder(spec, BOUNDS, FEATURES["least squares"], DV, heads=1, count=None)
    cap = document_cap(spec)
    bound = row_sensitivity2(spec, e.kernel, BOUNDS.value_norm, e.count)
    assert bound == (cap if adjacency == "add_remove" else 2 * cap) ** 2
    k, v = torch.tensor([[[0.9, 0.0]]]).double(), torch.tensor([[[0.7, 0.0]]]).double()
    documents = {n: e.documents(k.repeat(n, 1, 1), v.repeat(n, 1, 1), [0] * n, cap) for n in (1, 2, 3, 50, 1000)}
    assert all(integer_square_norm(total) <= cap**2 for total in documents.values())
    assert integer_square_norm(documents[1000]) > 0.999 * cap**2
    flipped = e.documents(k.repeat(9, 1, 1), -v.repeat(9, 1, 1), [0] * 9, cap)
    if adjacency == "replace_one":
        assert 0.5 * bound < integer_square_norm(documents[50] - flipped) <= bound


@given(st.lists(st.integers(-(2**45), 2**45), min_size=6, max_size=6), st.integers(1, 2**40))
@settings(max_examples=200, deadline=None)
def test_shortened_matrices_fit_in_exact_integers(cells: list[int], cap: int) -> None:
    total = torch.tensor(cells).reshape(2, 3)
    short = shorten(total, cap)
    assert integer_square_norm(short) <= cap**2
    if integer_square_norm(total) <= (cap * 0.99) ** 2 and max(map(abs, cells)) < 2**20:
        assert torch.equal(short, total) or cap < 200


def test_defaults_of_the_counting_column() -> None:
    kernel = FEATURES["least squares"].bind(BOUNDS)
    assert default_count(PrivacySpec(1, 1e-6), kernel, 0.7, 16) == pytest.approx(0.7 * 16**-0.25)
    least, most = min(kernel.least_inner, 0.0), kernel.norm**2
    wanted = 0.7 * math.sqrt(max((most + least) / (most - least), 0.25))
    spec = PrivacySpec(1, 1e-6, adjacency="replace_one")
    assert default_count(spec, kernel, 0.7, 16) == pytest.approx(wanted)


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_the_default_count_is_near_the_best(adjacency: str) -> None:
    """The squared error of an answer with ‖o‖ = R_w is ∝ Δ²(d_v + R_w²/c²)·(R_w² + c²) in real units."""
    spec, kernel, dv = PrivacySpec(1, 1e-6, adjacency=adjacency), FEATURES["least squares"].bind(BOUNDS), 9

    def error(count: float) -> float:
        real = row_sensitivity2(spec, kernel, 0.7, count) * (0.7**2 + count**2)
        return real * (dv + 0.7**2 / count**2)

    best = min(error(0.7 * c) for c in torch.linspace(0.05, 3, 300).tolist())
    assert error(default_count(spec, kernel, 0.7, dv)) <= 1.001 * best


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("shares", [1, 3])
def test_noise_covers_all_heads_and_shares(heads: int, shares: int) -> None:
    spec = PrivacySpec(2.0, 1e-6, shares=shares)
    calibration = calibrate(spec, FEATURE_CAP * VALUE_CAP, OpenDPSampler(), heads=heads, cells=100)
    assert calibration.sensitivity2 == heads * shares * 2**70
    assert delta_of(calibration.mu, 2.0) + calibration.slack <= 1e-6
    assert delta_of(calibration.mu * 1.0001, 2.0) > 1e-6  # and no more noise than that


def test_slack_of_our_own_sampler_is_taken_off_delta() -> None:
    spec = PrivacySpec(1.0, 1e-6)
    own, exact = (
        calibrate(spec, 2**70, sampler, heads=1, cells=140_000) for sampler in (RejectionSampler(), OpenDPSampler())
    )
    assert 0 < own.slack < 1e-8
    assert own.scale > exact.scale
    assert delta_of(own.mu, 1.0) + own.slack <= 1e-6


def test_a_delta_the_sampler_cannot_certify_is_refused() -> None:
    with pytest.raises(UsageError, match="install opendp"):
        calibrate(PrivacySpec(1.0, 1e-12), 2**70, RejectionSampler(), heads=1, cells=140_000)


@pytest.mark.parametrize(("epsilon", "wanted"), [(0.5, 8.06), (1, 4.22), (2, 2.23), (4, 1.19), (8, 0.65)])
def test_noise_over_sensitivity_is_the_analytic_gaussians(epsilon: float, wanted: float) -> None:
    from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

    calibration = calibrate(PrivacySpec(epsilon, 1e-6), 2**70, OpenDPSampler(), heads=1, cells=1000)
    ratio = calibration.scale / 2**35
    assert ratio == pytest.approx(wanted, abs=0.006)
    loss = GaussianPrivacyLoss(ratio)
    assert loss.get_delta_for_epsilon(epsilon) == pytest.approx(1e-6, rel=1e-6)


@pytest.mark.parametrize(("heads", "shares"), [(1, 1), (4, 1), (2, 3)])
def test_all_heads_and_shares_together_cost_epsilon_by_an_independent_accountant(heads: int, shares: int) -> None:
    """Every head of every share as a Gaussian of its own, composed by privacy-loss distributions."""
    from dp_accounting.pld import privacy_loss_distribution

    spec = PrivacySpec(1.5, 1e-6, shares=shares)
    calibration = calibrate(spec, 2**70, OpenDPSampler(), heads=heads, cells=1000)
    one = privacy_loss_distribution.from_gaussian_mechanism(
        calibration.scale / 2**35, value_discretization_interval=1e-3, use_connect_dots=True
    )
    assert one.self_compose(heads * shares).get_epsilon_for_delta(1e-6) == pytest.approx(1.5, abs=2e-3)
