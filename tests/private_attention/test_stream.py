import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from references.attention import unit_rows
from splitveil.check import RunError, UsageError
from splitveil.private_attention import (
    Bounds,
    PolynomialFeatures,
    PrivacySpec,
    PrivateKV,
    PrivateKVStream,
    files,
    journal,
)
from splitveil.private_attention.stream import weighted_floor

BOUNDS = Bounds(1.0, 1.0, 1.0)
FEATURES = PolynomialFeatures(2, 2).taylor(1.0)
KEYS, VALUES = unit_rows(200, 2, seed=1), unit_rows(200, 2, seed=2)


def stream(*, horizon: int = 8, **options) -> PrivateKVStream:
    spec = PrivacySpec(1.0, 1e-6, **{k: options.pop(k) for k in ("unit", "adjacency") if k in options})
    return PrivateKVStream(spec, BOUNDS, FEATURES, 2, horizon=horizon, **options)


def exact(n: int) -> torch.Tensor:
    b = PrivateKV.builder(PrivacySpec(1.0, 1e-6), BOUNDS, FEATURES, 2).add(KEYS[:n], VALUES[:n])
    return b._total.double() * b.facts.step


@pytest.mark.parametrize("method", ["sqrt_toeplitz", "tree", "independent"])
def test_every_tick_holds_the_rows_so_far_plus_the_stated_noise(method: str) -> None:
    scores = []
    for seed in range(12):
        s = stream(method=method, seed=seed)
        for tick in range(8):
            s.insert(KEYS[20 * tick : 20 * tick + 20], VALUES[20 * tick : 20 * tick + 20])
            memory = s.tick()
            scores.append((memory.moments - exact(20 * tick + 20)) / memory.facts.noise_std)
    z = torch.stack(scores)
    assert abs(float(z.mean())) < 0.15
    assert float(z.std()) == pytest.approx(1.0, abs=0.07)


@pytest.mark.parametrize("method", ["sqrt_toeplitz", "tree", "independent"])
def test_covariance_between_ticks_equals_the_factorization(method: str) -> None:
    """Noise of ticks s and t has covariance σ² (B Bᵀ)_st."""
    ticks, runs = 6, 60
    factors = stream(horizon=ticks, method=method, seed=1)._factors
    decode = np.zeros((ticks, factors.n_rows))
    for t in range(ticks):
        decode[t, : len(factors.decode(t))] = factors.decode(t)
    wanted = decode @ decode.T
    noise: list[list[np.ndarray]] = [[] for _ in range(ticks)]
    for run in range(runs):
        s = stream(horizon=ticks, method=method, seed=run)
        for t in range(ticks):
            noise[t].append((s.tick().moments / s.facts.noise_std).numpy().ravel())
    samples = np.array([np.concatenate(tick) for tick in noise])
    found = samples @ samples.T / samples.shape[1]
    spread = np.sqrt((wanted**2 + np.outer(np.diag(wanted), np.diag(wanted))) / samples.shape[1])
    assert (np.abs(found - wanted) < 5 * spread).all()
    assert (np.abs(found - np.eye(ticks)) > 5 * spread).any()  # and unlike fresh noise at every tick


def test_a_deleted_unit_is_gone_and_the_rest_stays() -> None:
    s = stream(deletions=True, seed=1)
    ids = [str(i) for i in range(60)]
    s.insert(KEYS[:60], VALUES[:60], ids)
    s.tick()
    s.delete(KEYS[40:60], VALUES[40:60], ids[40:])
    memory = s.tick()
    z = (memory.moments - exact(40)) / memory.facts.noise_std
    assert float(z.abs().max()) < 5
    assert float((sum(s._increments).double() * s.facts.step - exact(40)).abs().max()) == 0


def test_deletions_cost_root_two() -> None:
    plain, deleting = stream().facts.calibration, stream(deletions=True).facts.calibration
    assert deleting.scale / plain.scale == pytest.approx(2**0.5, rel=1e-6)


def test_a_stream_of_one_tick_is_a_builder() -> None:
    one, whole = stream(horizon=1).facts.calibration, PrivateKV.builder(PrivacySpec(1.0, 1e-6), BOUNDS, FEATURES, 2)
    assert one.scale == pytest.approx(whole.facts.calibration.scale, rel=1e-8)


def test_units_come_once_and_go_once_with_the_same_rows() -> None:
    s = stream(deletions=True, seed=1)
    s.insert(KEYS[:2], VALUES[:2], ["a", "b"])
    before = s._increment.clone()
    with pytest.raises(UsageError, match="inserted before"):
        s.insert(KEYS[2:4], VALUES[2:4], ["c", "a"])
    with pytest.raises(UsageError, match="other rows"):
        s.delete(KEYS[1:2], VALUES[1:2], ["a"])
    with pytest.raises(UsageError, match="never inserted"):
        s.delete(KEYS[:1], VALUES[:1], ["z"])
    assert torch.equal(s._increment, before)  # a refused call leaves nothing behind
    s.tick()
    s.delete(KEYS[:1], VALUES[:1], ["a"])
    with pytest.raises(UsageError, match="deleted before"):
        s.delete(KEYS[:1], VALUES[:1], ["a"])
    with pytest.raises(UsageError, match="inserted before"):
        s.insert(KEYS[:1], VALUES[:1], ["a"])


def test_what_a_stream_needs_is_told() -> None:
    with pytest.raises(UsageError, match="unit_ids are needed"):
        stream(deletions=True).insert(KEYS, VALUES)
    with pytest.raises(UsageError, match="without deletions=True"):
        stream().delete(KEYS[:1], VALUES[:1], ["a"])
    with pytest.raises(UsageError, match="id of its own"):
        stream().insert(KEYS[:2], VALUES[:2], ["a", "a"])
    with pytest.raises(UsageError, match="no tick has been published"):
        stream().current()
    with pytest.raises(UsageError, match="8 GiB"):
        PrivateKVStream(PrivacySpec(1, 1e-6), BOUNDS, PolynomialFeatures(64, 2).taylor(1.0), 64, horizon=8192)


def test_documents_are_shortened_as_in_a_builder() -> None:
    s = stream(unit="document", seed=1)
    s.insert(KEYS[:1].repeat(50, 1), VALUES[:1].repeat(50, 1), ["a"] * 50)
    assert float(s._increment.double().norm()) <= 2**35


def test_the_horizon_is_the_end() -> None:
    s = stream(horizon=2, seed=1)
    s.tick(), s.tick()
    with pytest.raises(UsageError, match="used up"):
        s.tick()


def test_a_resumed_stream_goes_on_as_if_nothing_happened(tmp_path: Path) -> None:
    s = stream(folder=tmp_path, deletions=True)
    s.insert(KEYS[:30], VALUES[:30], [str(i) for i in range(30)])
    first = s.tick()
    s.close()
    again = stream(folder=tmp_path, deletions=True)
    assert again.ticks == 1
    assert torch.equal(again.current().moments, first.moments)
    with pytest.raises(UsageError, match="inserted before"):
        again.insert(KEYS[:1], VALUES[:1], ["0"])
    again.delete(KEYS[:10], VALUES[:10], [str(i) for i in range(10)])
    z = (again.tick().moments - (exact(30) - exact(10))) / again.current().facts.noise_std
    assert float(z.abs().max()) < 5
    again.close()


def test_a_crash_before_the_file_publishes_nothing_and_after_it_the_same_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = stream(folder=tmp_path)
    s.insert(KEYS[:5], VALUES[:5])
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", _fail)
        with pytest.raises(OSError, match="disk"):
            s.tick()
    assert s.ticks == 0
    assert not list(tmp_path.glob("tick-*"))
    assert not list(tmp_path.glob(".tick-*"))  # no half-written file either
    with monkeypatch.context() as patch:
        patch.setattr(files, "_sync_folder", _fail)
        with pytest.raises(OSError, match="disk"):
            s.tick()  # renamed, then the crash: the tick is final although nobody has seen it
    with pytest.raises(RunError, match="already final"):
        s.tick()
    s.close()
    again = stream(folder=tmp_path)
    assert again.ticks == 1
    shown = again.current().moments
    again.close()
    once_more = stream(folder=tmp_path)
    assert torch.equal(once_more.current().moments, shown)
    once_more.close()


def test_two_writers_cannot_share_a_folder(tmp_path: Path) -> None:
    s = stream(folder=tmp_path)
    with pytest.raises(UsageError, match="in use"):
        stream(folder=tmp_path)
    s.close()
    stream(folder=tmp_path).close()


def test_a_folder_of_other_settings_is_refused(tmp_path: Path) -> None:
    stream(folder=tmp_path).close()
    with pytest.raises(UsageError, match=r"other settings \(.*horizon"):
        stream(folder=tmp_path, horizon=9)


def test_files_of_a_stream_are_its_owners_alone(tmp_path: Path) -> None:
    s = stream(folder=tmp_path)
    s.tick()
    s.close()
    assert {oct(p.stat().st_mode & 0o077) for p in tmp_path.iterdir()} == {"0o0"}


def test_closing_wipes_the_exact_sums() -> None:
    s = stream(seed=1)
    s.insert(KEYS, VALUES)
    s.tick()
    kept = s._increments[0]
    s.close()
    assert kept.abs().sum() == 0


def test_a_stream_is_not_pickled() -> None:
    with pytest.raises(UsageError, match="not pickled"):
        pickle.dumps(stream())


@pytest.mark.parametrize("sign", [1, -1])
def test_the_weighted_floor_is_exact(sign: int) -> None:
    rng = np.random.default_rng(0)
    increments = [torch.from_numpy(rng.integers(-(2**55), 2**55, 6)) * sign for _ in range(9)]
    weights = rng.integers(0, 2**16 + 1, 9)
    wanted = [sum(int(w) * int(x[i]) for w, x in zip(weights, increments, strict=True)) >> 16 for i in range(6)]
    assert weighted_floor(weights, increments).tolist() == wanted


@pytest.mark.slow
def test_a_killed_process_never_shows_two_versions_of_a_tick(tmp_path: Path) -> None:
    """Kill a publisher at a random moment, many times; every tick it printed is the one the folder holds."""
    program = textwrap.dedent(
        """
        import sys, torch
        from splitveil.private_attention import *
        s = PrivateKVStream(PrivacySpec(1.0, 1e-6), Bounds(1, 1, 1), PolynomialFeatures(2, 2).taylor(1.0), 2,
                            horizon=4000, folder=sys.argv[1])
        while True:
            memory = s.tick()
            print(s.ticks, float(memory.moments.sum()).hex(), flush=True)
        """
    )
    shown: dict[int, set[str]] = {}
    environment = os.environ | {"PYTHONPATH": str(Path(journal.__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    for attempt in range(8):
        run = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
        )
        assert run.stdout is not None
        for _ in range(3 + 7 * attempt):
            tick, value = run.stdout.readline().split()
            shown.setdefault(int(tick), set()).add(value)
        run.kill()
        rest = run.communicate()[0].splitlines()
        for line in rest:
            if len(line.split()) == 2 and line.split()[1].count("p"):
                shown.setdefault(int(line.split()[0]), set()).add(line.split()[1])
    assert len(shown) > 50
    assert all(len(values) == 1 for values in shown.values())


def _fail(*_: object) -> None:
    raise OSError("disk")
