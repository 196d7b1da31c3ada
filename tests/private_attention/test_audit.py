"""The audit passes the code and refutes it with each of several bugs planted in it."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from splitveil.private_attention import Bounds, Builder, PolynomialFeatures, PrivacySpec, PrivateKV, PrivateKVStream
from splitveil.private_attention import builder as builder_module
from splitveil.private_attention import encoder as encoder_module
from splitveil.private_attention import polynomial as polynomial_module
from splitveil.private_attention import stream as stream_module
from splitveil.private_attention.audit import (
    AuditResult,
    audit_builders,
    audit_noise,
    check_numbers,
    mu_lower_limit,
)
from splitveil.private_attention.sampler import LatticeSampler, OpenDPSampler, RejectionSampler
from splitveil.private_attention.sensitivity import Calibration, calibrate, row_sensitivity2

EPSILON, DELTA = 4.0, 1e-6
FEATURES = PolynomialFeatures(2, 2).taylor(2.0)
BOUNDS = Bounds(1.0, 1.0, 1.0)
KEY, VALUE = torch.tensor([[0.6, 0.8]]), torch.tensor([[1.0, 0.0]])
Rows = tuple[torch.Tensor, torch.Tensor]


def builder(rows: list[Rows], *, heads: int = 1, ids: list[str] | None = None, **spec) -> Builder:
    b = PrivateKV.builder(PrivacySpec(EPSILON, DELTA, **spec), BOUNDS, FEATURES, 2, heads=heads, seed=11)
    for keys, values in rows:
        b.add(*(x if heads == 1 else x[:, None].repeat(1, heads, 1) for x in (keys, values)), *([ids] if ids else []))
    return b


def add_one_row(**options) -> AuditResult:
    return audit_builders(builder([], **options), builder([(KEY, VALUE)], **options))


def add_a_wild_row() -> AuditResult:
    return audit_builders(builder([]), builder([(5 * KEY, 7 * VALUE)]))


def replace_one_row() -> AuditResult:
    options = {"adjacency": "replace_one"}
    return audit_builders(builder([(KEY, -VALUE)], **options), builder([(KEY, VALUE)], **options))


def add_one_row_to_every_head() -> AuditResult:
    return add_one_row(heads=3)


def add_a_document() -> AuditResult:
    options = {"unit": "document"}
    rows = KEY.repeat(9, 1), VALUE.repeat(9, 1)
    return audit_builders(builder([], **options), builder([rows], ids=["a"] * 9, **options))


def add_one_row_to_a_share() -> AuditResult:
    """Three memories of the same rows: the audit sees one; together they cost √3 of it."""
    one = add_one_row(shares=3)
    whole = builder([], shares=3).facts.calibration.mu
    return AuditResult(whole, one.measured_mu * math.sqrt(3), one.releases)


def insert_and_delete(method: str = "sqrt_toeplitz") -> AuditResult:
    """Everything a stream publishes, with and without one unit that comes at tick 0 and goes at the last but one."""
    published = {}
    for present in (False, True):
        stream = PrivateKVStream(
            PrivacySpec(EPSILON, DELTA), BOUNDS, FEATURES, 2, horizon=16, method=method, deletions=True, seed=5
        )
        exact = []
        for tick in range(16):
            if present and tick == 0:
                stream.insert(KEY, VALUE, ["a"])
            if present and tick == 14:
                stream.delete(KEY, VALUE, ["a"])
            increments = [*stream._increments, stream._increment]
            exact += [stream_module.weighted_floor(w, increments) for w in stream._factors.encode(tick)]
            stream.tick()
        published[present] = torch.stack(exact)
    facts = stream.facts
    return audit_noise(
        (published[False], published[True]),
        facts.calibration.scale,
        RejectionSampler(6),
        claimed_mu=facts.calibration.mu,
        releases=10_000,
    )


SOUND: dict[str, Callable[[], AuditResult]] = {
    "add one row": add_one_row,
    "add a row far beyond the bounds": add_a_wild_row,
    "replace one row": replace_one_row,
    "a row in every head": add_one_row_to_every_head,
    "a row in every share": add_one_row_to_a_share,
    "a document of many rows": add_a_document,
    "insert and delete in a stream": insert_and_delete,
}


@pytest.mark.parametrize("audit", SOUND.values(), ids=SOUND.keys())
def test_the_code_is_not_refuted_and_the_audit_is_not_blind(audit: Callable[[], AuditResult]) -> None:
    result = audit()
    assert not result.is_refuted
    floor = 0.5 if audit in (insert_and_delete, replace_one_row) else 0.85
    assert result.measured_mu > floor * result.claimed_mu


def halve_sigma(patch: pytest.MonkeyPatch) -> None:
    def wrong(*args, **options) -> Calibration:
        sound = calibrate(*args, **options)
        return replace(sound, scale=sound.scale // 2)

    patch.setattr(builder_module, "calibrate", wrong)


def leave_out_the_count(patch: pytest.MonkeyPatch) -> None:
    """Δ = B·R_w instead of B·√(R_w² + c²)."""

    def wrong(spec, kernel, value_norm, count) -> int:
        share = value_norm**2 / (value_norm**2 + count**2)
        return int(row_sensitivity2(spec, kernel, value_norm, count) * share)

    patch.setattr(builder_module, "row_sensitivity2", wrong)


def do_not_clip(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(encoder_module, "to_unit_ball", lambda rows, radius, center=None: rows.double() / radius)
    patch.setattr(encoder_module, "enforce_cap", lambda ints, cap, spare=None: ints)
    patch.setattr("splitveil.private_attention.lattice.enforce_cap", lambda ints, cap: ints)


def take_the_wrong_adjacency(patch: pytest.MonkeyPatch) -> None:
    def wrong(spec, kernel, value_norm, count) -> int:
        return row_sensitivity2(replace(spec, adjacency="add_remove"), kernel, value_norm, count)

    patch.setattr(builder_module, "row_sensitivity2", wrong)


def forget_the_heads(patch: pytest.MonkeyPatch) -> None:
    def wrong(spec, unit2, sampler, *, heads, cells) -> Calibration:
        return calibrate(spec, unit2, sampler, heads=1, cells=cells)

    patch.setattr(builder_module, "calibrate", wrong)


def forget_the_shares(patch: pytest.MonkeyPatch) -> None:
    def wrong(spec, unit2, sampler, *, heads, cells) -> Calibration:
        return calibrate(replace(spec, shares=1), unit2, sampler, heads=heads, cells=cells)

    patch.setattr(builder_module, "calibrate", wrong)


def do_not_shorten_documents(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(encoder_module, "shorten", lambda total, cap: total)


def forget_deletions(patch: pytest.MonkeyPatch) -> None:
    """Without √2, on a factorization whose insert and delete columns hardly overlap, where it is needed in full."""
    sound = stream_module.stream_sensitivity2
    patch.setattr(
        stream_module, "stream_sensitivity2", lambda *args, **options: sound(*args, **(options | {"deletions": False}))
    )


def forget_the_column_norm(patch: pytest.MonkeyPatch) -> None:
    """A stream's noise calibrated as if a unit appeared in one published number only."""
    sound = stream_module.stream_sensitivity2
    patch.setattr(stream_module, "stream_sensitivity2", lambda unit2, _, **o: sound(unit2, 2**32, **o))


def forget_a_weight_of_the_features(patch: pytest.MonkeyPatch) -> None:
    """B computed without the degree-2 part, features lifted with it, and no integer check to catch it."""
    make = polynomial_module.PolynomialKernel.__init__

    def wrong(self, features, *, key_norm, query_norm) -> None:
        make(self, features, key_norm=key_norm, query_norm=query_norm)
        short = math.sqrt(self.alpha2[0] + self.alpha2[1] * key_norm**2)
        self._lift_weights = self._lift_weights * (self.norm / short)

    patch.setattr(polynomial_module.PolynomialKernel, "__init__", wrong)
    patch.setattr(encoder_module, "enforce_cap", lambda ints, cap, spare=None: ints)


PLANTED: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Callable[[], AuditResult]]] = {
    "sigma halved": (halve_sigma, add_one_row),
    "c left out of the sensitivity": (leave_out_the_count, add_one_row),
    "no clipping": (do_not_clip, add_a_wild_row),
    "wrong adjacency": (take_the_wrong_adjacency, replace_one_row),
    "missing √2 for deletions": (forget_deletions, lambda: insert_and_delete("independent")),
    "missing √heads": (forget_the_heads, add_one_row_to_every_head),
    "missing √shares": (forget_the_shares, add_one_row_to_a_share),
    "documents not shortened": (do_not_shorten_documents, add_a_document),
    "stream calibrated for one number": (forget_the_column_norm, insert_and_delete),
    "feature norm without a degree": (forget_a_weight_of_the_features, add_one_row),
}


@pytest.mark.parametrize(("plant", "audit"), PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_bug_is_refuted(
    plant: Callable[[pytest.MonkeyPatch], None], audit: Callable[[], AuditResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert audit().is_refuted


def test_the_lower_limit_is_one() -> None:
    """On samples of an exactly μ-GDP pair, it exceeds μ about once in a thousand times, and comes close to it."""
    rng = np.random.default_rng(0)
    limits = [mu_lower_limit(rng.standard_normal(4000), rng.standard_normal(4000) + 1.0, 0.5) for _ in range(400)]
    assert np.mean(np.array(limits) > 1.0) <= 0.01
    assert np.mean(limits) > 0.85


def test_neighbors_that_do_not_differ_prove_nothing() -> None:
    same = torch.ones(1, 2, 2, dtype=torch.int64)
    assert audit_noise((same, same), 100, RejectionSampler(0), claimed_mu=1.0).measured_mu == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "releases"), [(OpenDPSampler(), 8_000), (RejectionSampler(), 40_000)], ids=["opendp", "own"]
)
def test_real_releases_end_to_end_are_not_refuted(sampler: LatticeSampler, releases: int) -> None:
    """Builders released through the public path, 40,000 of each kind, projected on the known difference."""
    features = PolynomialFeatures(1, 1).taylor(1.0)
    row = torch.tensor([[1.0]]), torch.tensor([[1.0]])
    spec, bounds = PrivacySpec(EPSILON, DELTA), Bounds(1, 1, 1)

    def release(present: bool) -> torch.Tensor:
        b = Builder(spec, bounds, features, 1, sampler=sampler)
        return (b.add(*row) if present else b).release().moments

    b = Builder(spec, bounds, features, 1, sampler=sampler).add(*row)
    gap = b._total.double() * b.facts.step
    direction, noise = gap / gap.norm(), b.facts.noise_std
    drawn = {p: torch.stack([(release(p) * direction).sum() for _ in range(releases)]).numpy() / noise for p in (0, 1)}
    length = float(gap.norm()) / noise
    assert mu_lower_limit(drawn[0], drawn[1], length / 2) <= b.facts.calibration.mu
    assert stats.kstest(drawn[0], "norm").pvalue > 1e-4
    assert stats.kstest(drawn[1] - length, "norm").pvalue > 1e-4


def memory(**changes) -> PrivateKV:
    sound = PrivateKV.builder(PrivacySpec(1.0, 1e-6), BOUNDS, FEATURES, 2).add(KEY, VALUE).release()
    calibration = replace(sound.facts.calibration, **changes)
    return PrivateKV(replace(sound.facts, calibration=calibration), sound.moments)


def test_a_sound_memory_has_nothing_wrong_with_its_numbers() -> None:
    assert check_numbers(memory()) == []


def test_each_wrong_number_of_a_memory_is_named() -> None:
    sound = memory()
    numbers = sound.facts.calibration
    assert "sensitivity" in check_numbers(memory(sensitivity2=numbers.sensitivity2 // 2))[0]
    assert any("smaller than" in line for line in check_numbers(memory(scale=numbers.scale // 2)))
    assert any("too small" in line for line in check_numbers(memory(scale=numbers.scale // 2, mu=2 * numbers.mu)))
    off = PrivateKV(sound.facts, sound.moments + 0.3 * sound.facts.step)
    assert any("lattice" in line for line in check_numbers(off))
    assert "seed" in check_numbers(builder([]).release())[0]
