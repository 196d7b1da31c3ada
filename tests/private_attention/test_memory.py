import copy
import json
import math
from pathlib import Path

import pytest
import torch

from references.attention import exact_attention, polynomial_attention, relative_error, unit_rows
from splitveil.check import UsageError
from splitveil.dp import Ledger, NonPrivate
from splitveil.private_attention import (
    Bounds,
    CodebookFeatures,
    NystromFeatures,
    PolynomialFeatures,
    PrivacySpec,
    PrivateKV,
)
from splitveil.private_attention.sampler import RejectionSampler


def released(
    n: int = 2000, *, d: int = 4, dv: int = 3, epsilon: float = 1.0, seed: int = 1, heads: int = 1, **bounds
) -> tuple[PrivateKV, torch.Tensor, torch.Tensor]:
    shape = (n, d) if heads == 1 else (n, heads, d)
    keys = unit_rows(n * heads, d, seed=1).reshape(shape)
    values = unit_rows(n * heads, dv, seed=2).reshape(*shape[:-1], dv) + 0.3
    values /= values.norm(dim=-1, keepdim=True).clamp_min(1.0)
    features = PolynomialFeatures(d, 2).fit_public(unit_rows(99, d, seed=3) @ unit_rows(99, d, seed=4).T, 2.0)
    spec = PrivacySpec(epsilon, 1e-6)
    b = PrivateKV.builder(spec, Bounds(1.0, 1.0, 1.0, **bounds), features, dv, heads=heads, seed=seed)
    return b.add(keys, values).release(), keys, values


def test_with_little_noise_the_answer_is_the_polynomials() -> None:
    memory, keys, values = released(epsilon=1e5)
    q = unit_rows(30, 4, seed=5)
    coefficients = memory.facts.kernel.features.coefficients(2.0)
    assert relative_error(memory.attend(q).output, polynomial_attention(q, keys, values, coefficients)) < 2e-4


def test_with_little_noise_and_a_high_degree_the_answer_is_exact_attention() -> None:
    keys, values, q = unit_rows(500, 3, seed=1), unit_rows(500, 2, seed=2), unit_rows(20, 3, seed=3)
    features = PolynomialFeatures(3, 9).taylor(2.0)
    memory = PrivateKV.builder(PrivacySpec(1e5, 1e-6), Bounds(1, 1, 1), features, 2, seed=1).add(keys, values).release()
    assert relative_error(memory.attend(q).output, exact_attention(q, keys, values, 2.0)) < 1e-3


def test_centers_change_nothing_but_the_noise() -> None:
    center = {"key_center": [0.05, -0.1, 0.0, 0.1], "value_center": [0.2, 0.2, 0.1]}
    _, keys, values = released(epsilon=1e5)
    features = PolynomialFeatures(4, 7).taylor(2.0)
    bounds = Bounds(1.2, 1.0, 1.4, **center)
    centered = PrivateKV.builder(PrivacySpec(1e5, 1e-6), bounds, features, 3, seed=1).add(keys, values).release()
    q = unit_rows(10, 4, seed=5)
    assert relative_error(centered.attend(q).output, exact_attention(q, keys, values, 2.0)) < 2e-3


@pytest.mark.parametrize("n", [700, 5000])
def test_intervals_from_stderr_cover_the_polynomials_answer(n: int) -> None:
    q = unit_rows(40, 4, seed=5)
    hits, total = 0, 0
    for seed in range(60):
        memory, keys, values = released(n, seed=seed)
        truth = polynomial_attention(q[:4] if seed else q, keys, values, memory.facts.kernel.features.coefficients(2.0))
        answer = memory.attend(q[:4] if seed else q)
        inside = (answer.output - truth).abs() <= 1.96 * answer.stderr
        hits, total = hits + int(inside.sum()), total + inside.numel()
    assert 0.93 <= hits / total <= 0.97


def test_stderr_does_not_claim_to_cover_the_bias() -> None:
    """At β = 6 a quadratic is far off: intervals around its answer miss exact attention, and the report says so."""
    keys = unit_rows(30_000, 4, seed=1)
    features = PolynomialFeatures(4, 2).fit_public(unit_rows(99, 4, seed=3) @ unit_rows(99, 4, seed=4).T, 6.0)
    spec = PrivacySpec(8.0, 1e-6)
    memory = PrivateKV.builder(spec, Bounds(1, 1, 1), features, 4, seed=1).add(keys, keys).release()
    q = unit_rows(50, 4, seed=5)
    answer = memory.attend(q)
    covered = ((answer.output - exact_attention(q, keys, keys, 6.0)).abs() <= 1.96 * answer.stderr).double().mean()
    assert covered < 0.6
    assert "standard errors show the noise only" in memory.report().text()


def test_one_query_is_answered_as_in_a_batch() -> None:
    memory, _, _ = released(value_center=[0.1, 0.0, 0.2])
    q = torch.cat([unit_rows(5, 4, seed=5), 3 * unit_rows(1, 4, seed=6), torch.zeros(1, 4)]).float()
    batch = memory.attend(q)
    for i in range(len(q)):
        one, row = memory.attend(q[i]), memory.attend(q[i : i + 1])
        for got, also, wanted in zip(one, row, batch, strict=True):
            assert torch.allclose(got.double(), wanted[i].double(), rtol=2e-4, atol=1e-6)
            assert torch.allclose(got.double(), also[0].double(), rtol=2e-4, atol=1e-6)
            assert got.dtype == wanted.dtype


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e10])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_query_that_is_no_number_is_flagged_and_spoils_no_other(bad: float, dtype: torch.dtype) -> None:
    memory, _, _ = released(50_000)
    q = unit_rows(3, 4, seed=5).to(dtype)
    wanted = memory.attend(q)
    q[1, 2] = bad
    many, one = memory.attend(q), memory.attend(q[1])
    assert many.flagged.tolist() == [False, True, False]
    assert bool(one.flagged)
    assert torch.equal(many.output[::2], wanted.output[::2])


def test_small_batches_are_answered_as_large_ones() -> None:
    """Up to 256 queries go through numpy, more of them through torch."""
    memory, _, _ = released(value_center=[0.1, 0.0, 0.2])
    q = (1.5 * torch.rand(600, 1, dtype=torch.float64) * unit_rows(600, 4, seed=5)).float()
    large = memory.attend(q)
    for small in (memory.attend(q[:200]), memory.attend(q[:200].reshape(4, 50, 4))):
        for got, wanted in zip(small, large, strict=True):
            flat = got.reshape(200, *wanted.shape[1:])
            assert torch.allclose(flat.double(), wanted[:200].double(), rtol=1e-3, atol=1e-5)


def test_float32_and_float64_answers_agree() -> None:
    memory, _, _ = released()
    q = unit_rows(9, 4, seed=5)
    assert torch.allclose(memory.attend(q.float()).output.double(), memory.attend(q).output, atol=1e-5)


def test_a_long_query_is_shortened_and_flagged() -> None:
    memory, _, _ = released(100_000)
    q = unit_rows(3, 4, seed=5)
    near, far = memory.attend(q), memory.attend(5 * q)
    assert torch.allclose(near.output, far.output)
    assert not near.flagged.any()
    assert far.flagged.all()


def test_low_signal_is_flagged_and_high_signal_is_not() -> None:
    q = unit_rows(20, 4, seed=5)
    few, many = released(30)[0].attend(q), released(50_000)[0].attend(q)
    assert few.flagged.float().mean() > 0.9
    assert not many.flagged.any()
    assert float(many.snr.min()) > float(few.snr.max())


def test_gradients_flow_to_queries_and_are_right() -> None:
    memory, _, _ = released()
    q = (0.8 * unit_rows(3, 4, seed=5)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: memory.attend(x).output, (q,), eps=1e-6, atol=1e-6)
    zero = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    memory.attend(zero).output.sum().backward()
    assert torch.isfinite(zero.grad).all()


def test_another_temperature_is_answered_from_the_same_release() -> None:
    memory, keys, values = released(100_000, epsilon=8.0)
    q = unit_rows(20, 4, seed=5)
    for beta in (0.5, 1.0, 2.0):
        assert relative_error(memory.attend(q, beta=beta).output, exact_attention(q, keys, values, beta)) < 0.05


def test_heads_are_answered_each_from_its_own_rows() -> None:
    memory, keys, values = released(3000, heads=2, epsilon=1e5)
    q = unit_rows(10, 4, seed=5).reshape(5, 2, 4)
    answer = memory.attend(q)
    assert answer.output.shape == (5, 2, 3)
    assert answer.flagged.shape == (5, 2)
    coefficients = memory.facts.kernel.features.coefficients(2.0)
    for h in range(2):
        truth = polynomial_attention(q[:, h], keys[:, h], values[:, h], coefficients)
        assert relative_error(answer.output[:, h], truth) < 1e-3


def test_the_noisy_count_counts() -> None:
    memory, _, _ = released(5000)
    count, std = memory.noisy_count()
    assert abs(float(count) - 5000) < 5 * std
    assert std < 100


@pytest.mark.parametrize("kind", ["polynomial", "nystrom", "codebook", "heads"])
def test_save_and_load_give_the_same_answers(tmp_path: Path, kind: str) -> None:
    public = unit_rows(30, 4, seed=3)
    features = {
        "polynomial": PolynomialFeatures(4, 2).fit_public(public @ public.T, 2.0),
        "nystrom": NystromFeatures(public, 2.0),
        "codebook": CodebookFeatures(public[:10], 14.0),
        "heads": PolynomialFeatures(4, 2).taylor(2.0),
    }[kind]
    heads = 2 if kind == "heads" else 1
    bounds = Bounds(1, 1, 1, key_center=[0.0, 0.1, 0.0, 0.0], value_center=[0.1, 0.0])
    b = PrivateKV.builder(PrivacySpec(1.0, 1e-6), bounds, features, 2, heads=heads)
    memory = b.add(torch.randn(50, heads, 4), torch.randn(50, heads, 2)).release()
    memory.save(tmp_path / "m")
    again = PrivateKV.load(tmp_path / "m")
    q = torch.randn(7, heads, 4).squeeze(1)
    for got, wanted in zip(again.attend(q), memory.attend(q), strict=True):
        assert torch.equal(got, wanted)
    assert again.report().text() == memory.report().text()
    modes = {p.name: oct(p.stat().st_mode & 0o777) for p in (tmp_path / "m").iterdir()}
    assert modes == {"memory.json": "0o644", "memory.safetensors": "0o644"}


def test_under_add_remove_no_file_or_report_depends_on_the_number_of_rows(tmp_path: Path) -> None:
    texts = []
    for n in (10, 5003):
        memory, _, _ = released(n)
        memory.save(tmp_path / str(n))
        texts.append((tmp_path / str(n) / "memory.json").read_text())
        assert "5003" not in texts[-1]
    assert texts[0] == texts[1]
    sizes = [(tmp_path / str(n) / "memory.safetensors").stat().st_size for n in (10, 5003)]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("memory.json", b"{", "is not JSON"),
        ("memory.json", b"[]", "must hold a JSON object"),
        ("memory.json", b"{}", "format None"),
        ("memory.json", b'{"format": 1}', "is not a memory's record"),
        ("memory.safetensors", b"junk", "is not a safetensors file"),
    ],
)
def test_damaged_files_are_told_in_one_line(tmp_path: Path, file: str, content: bytes, says: str) -> None:
    released(10)[0].save(tmp_path)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(UsageError, match=says) as error:
        PrivateKV.load(tmp_path)
    assert "\n" not in str(error.value)


def test_a_missing_folder_and_moments_of_the_wrong_shape_are_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        PrivateKV.load(tmp_path / "nowhere")
    released(10)[0].save(tmp_path)
    facts = json.loads((tmp_path / "memory.json").read_text())
    (tmp_path / "memory.json").write_text(json.dumps(facts | {"dv": 9}))
    with pytest.raises(UsageError, match="must hold moments of shape"):
        PrivateKV.load(tmp_path)


def test_released_numbers_lie_on_a_lattice_that_rows_do_not_choose() -> None:
    one, other = released(10)[0], released(4000, seed=2)[0]
    assert one.facts.step == other.facts.step
    for memory in (one, other):
        steps = memory.moments / memory.facts.step
        assert float((steps - steps.round()).abs().max()) < 2.0**-6
        assert float(steps.abs().max()) > 2**36  # many steps: the test could fail


def test_an_adaptive_adversary_learns_no_more_than_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each query is the direction in which all earlier answers point. Every answer is a function of the release
    alone, so the adversary's transcript is the same whatever rows gave that release, and is repeated bit for bit from
    the files."""
    memory, _, _ = released(3000)
    twin = PrivateKV(memory.facts, memory.moments.clone())

    def attack(target: PrivateKV) -> torch.Tensor:
        q, transcript = torch.full((4,), 0.5), []
        for step in range(50):
            answer = target.attend(q, beta=1.0 + step / 25)
            transcript.append(torch.cat([answer.output, answer.stderr]))
            history = torch.stack(transcript).sum(0)
            pull = torch.cat([history[:3], history.sum()[None]])
            q = (pull / pull.norm()).float()
        return torch.stack(transcript)

    assert torch.equal(attack(memory), attack(twin))


@pytest.mark.parametrize("trials", [240, pytest.param(6000, marks=pytest.mark.slow)])
def test_an_adaptive_adversary_cannot_beat_the_gaussian_bound(trials: int) -> None:
    """Tell a row present from absent with adaptive queries on every release: the advantage stays below that of one
    look at the projection of the release itself, which is Φ(μ/2) − Φ(−μ/2)."""
    row = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0]])
    base = unit_rows(40, 2, seed=1), torch.zeros(40, 1, dtype=torch.float64)
    features, spec = PolynomialFeatures(2, 1).taylor(1.0), PrivacySpec(4.0, 1e-6)
    scores: dict[bool, list[float]] = {True: [], False: []}
    for trial in range(trials):
        present = trial % 2 == 0
        b = PrivateKV.builder(spec, Bounds(1, 1, 1), features, 1, seed=trial).add(*base)
        memory = (b.add(*row) if present else b).release()
        q, best = torch.tensor([1.0, 0.0]), -math.inf
        for _ in range(10):
            answer = memory.attend(q.double())
            best = max(best, float(answer.output[0]))
            turn = 0.3 if answer.output[0] > best - 1e-9 else -0.2
            q = torch.tensor(
                [q[0] * math.cos(turn) - q[1] * math.sin(turn), q[0] * math.sin(turn) + q[1] * math.cos(turn)]
            )
        scores[present].append(best)
    with_, without = torch.tensor(scores[True]), torch.tensor(scores[False])
    cuts = torch.cat([with_, without])
    advantage = max(abs(float((with_ > c).double().mean() - (without > c).double().mean())) for c in cuts)
    mu = memory.facts.calibration.mu
    limit = math.erf(mu / 2 / math.sqrt(2))  # Φ(μ/2) − Φ(−μ/2)
    assert advantage <= limit + 3 * math.sqrt(1 / trials)


def test_a_seeded_memory_says_it_is_not_private_and_costs_everything() -> None:
    memory, _, _ = released(seed=4)
    assert memory.report().text().startswith("NOT PRIVATE")
    assert memory.facts.to_json()["private"] is False
    assert memory.event() == NonPrivate()


def test_events_of_shares_add_up_to_the_spec() -> None:
    ledger = Ledger()
    for _ in range(3):
        spec = PrivacySpec(2.0, 1e-6, shares=3)
        b = PrivateKV.builder(spec, Bounds(1, 1, 1), PolynomialFeatures(2, 1).taylor(1.0), 1, heads=2)
        ledger.record(b.add(torch.randn(5, 2, 2), torch.randn(5, 2, 1)).release().event())
    assert ledger.epsilon(1e-6) == pytest.approx(2.0, rel=1e-6)


def test_a_memory_is_its_own_deep_copy() -> None:
    memory, _, _ = released(10)
    assert copy.deepcopy([memory])[0] is memory


@pytest.mark.parametrize("shape", [(3,), (2, 5), (2, 3, 3)])
def test_queries_of_the_wrong_width_are_told(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"\(…, 4\)"):
        released(10)[0].attend(torch.zeros(shape))


def test_queries_without_a_head_axis_are_told() -> None:
    with pytest.raises(UsageError, match=r"\(…, 2, 4\)"):
        released(10, heads=2)[0].attend(torch.zeros(3, 4))


def test_our_own_sampler_and_opendp_release_the_same_thing() -> None:
    """Same scale but for the slack, and noise of the same spread."""
    memory, _, _ = released(100)
    own = RejectionSampler(0).draw(memory.facts.calibration.scale, 4000)
    assert own.std() / memory.facts.calibration.scale == pytest.approx(1.0, abs=0.05)


def test_gradients_flow_after_a_query_in_inference_mode() -> None:
    keys, values = unit_rows(400, 4, seed=1), unit_rows(400, 3, seed=2)
    features = PolynomialFeatures(4, 2).taylor(1.0)
    memory = PrivateKV.builder(PrivacySpec(1.0, 1e-6), Bounds(1, 1, 1), features, 3, seed=1).add(keys, values).release()
    q = unit_rows(5, 4, seed=3).float()
    with torch.inference_mode():
        memory.attend(q)
    later = q.clone().requires_grad_()
    memory.attend(later).output.sum().backward()
    assert float(later.grad.abs().sum()) > 0
