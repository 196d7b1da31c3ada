"""Arrays on disk → a private memory: checks told in one line each, rows read in parts."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splitveil.check import UsageError, positive
from splitveil.cli.display import out as stdout
from splitveil.cli.display import print_json
from splitveil.private_attention import (
    Bounds,
    CodebookFeatures,
    NystromFeatures,
    PolynomialFeatures,
    PrivacySpec,
    PrivateKV,
    PublicPrior,
)
from splitveil.private_attention.kernel import FeatureMap

PART = 65_536  # rows read at a time
MOST_PUBLIC = 5_000  # public rows that bounds and features are fitted on
PRIVATE_NOTE = "(this line is about your private rows)"

Array = NDArray[Any]


@dataclass(frozen=True)
class Request:
    """What `splitveil memory build` was asked for."""

    keys: Path
    values: Path
    public: Path | None
    units: Path | None
    epsilon: float
    delta: float
    adjacency: Literal["add_remove", "replace_one"]
    document_rows: float
    features: Literal["polynomial", "taylor", "nystrom", "codebook"]
    beta: float
    degree: int
    cells: int
    norms: tuple[float | None, float | None, float | None]
    accuracy: float | None
    use_prior: bool
    seed: int | None


@dataclass(frozen=True)
class Public:
    """Public rows, where there are any."""

    keys: Tensor
    values: Tensor | None


def build_memory(request: Request, *, out: Path, as_json: bool) -> None:
    """Check, build, release, write; then say what was written."""
    if (out / "memory.json").exists():
        raise UsageError(f"{out} holds a memory already; a second one from the same rows costs privacy again")
    spec = _spec(request)
    keys, values = read_rows(request.keys), read_rows(request.values)
    if len(keys) != len(values):
        raise UsageError(f"{request.keys} has {len(keys)} rows and {request.values} {len(values)}; they must agree")
    public = _read_public(request, keys, values)
    bounds = _bounds(request, public)
    features = _features(request, public, bounds, keys.shape[1])
    builder = PrivateKV.builder(spec, bounds, features, values.shape[1], seed=request.seed)
    units = _read_units(request.units, len(keys))
    for part in _parts(len(keys), units):
        ids = None if units is None else units[part].tolist()
        builder.add(torch.from_numpy(np.array(keys[part])), torch.from_numpy(np.array(values[part])), ids)
    memory = _finish(request, builder.release(), public)
    memory.save(out)
    _tell(memory, out, as_json)


def read_rows(path: Path) -> Array:
    """A finite matrix of real numbers in a .npy file, left on disk."""
    rows = _read(path)
    if rows.ndim != 2 or rows.dtype.kind != "f" or 0 in rows.shape:
        raise UsageError(f"{path} must be a non-empty (n, d) array of floats, got {rows.dtype} {rows.shape}")
    for start in range(0, len(rows), PART):
        if not np.isfinite(rows[start : start + PART]).all():
            raise UsageError(f"{path} holds NaN or infinite numbers; clean it first {PRIVATE_NOTE}")
    return rows


def _read(path: Path) -> Array:
    try:
        loaded: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"{path} is not a .npy file that can be read ({str(error).splitlines()[0]})") from error
    if not isinstance(loaded, np.ndarray):
        raise UsageError(f"{path} holds several arrays; give one array in a .npy file")
    return loaded


def _read_public(request: Request, keys: Array, values: Array) -> Public | None:
    if request.public is None:
        return None
    rows = read_rows(request.public)
    d, dv = keys.shape[1], values.shape[1]
    if rows.shape[1] not in {d, d + dv}:
        raise UsageError(f"{request.public} must have {d} columns (keys) or {d + dv} (and values), got {rows.shape[1]}")
    _refuse_overlap(request, np.ascontiguousarray(rows[:, :d]), keys)
    chosen = np.random.default_rng(0).permutation(len(rows))[:MOST_PUBLIC]
    some = torch.from_numpy(np.array(rows[np.sort(chosen)], dtype=np.float64))
    if rows.shape[1] == d + dv:
        return Public(some[:, :d], some[:, d:])
    return Public(some, some if d == dv else None)  # values as wide as keys: a store of embeddings


def _refuse_overlap(request: Request, public: Array, keys: Array) -> None:
    known = set(_digests(public))
    for start in range(0, len(keys), PART):
        if not known.isdisjoint(_digests(np.asarray(keys[start : start + PART]))):
            raise UsageError(
                f"a row of {request.public} is also in {request.keys}; public rows must not be private {PRIVATE_NOTE}"
            )


def _digests(rows: Array) -> Iterator[bytes]:
    plain = np.ascontiguousarray(rows, dtype=np.float32)
    return (hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in plain)


def _read_units(path: Path | None, n_rows: int) -> Array | None:
    if path is None:
        return None
    units = _read(path)
    if units.shape != (n_rows,) or units.dtype.kind not in "iuUS":
        raise UsageError(
            f"{path} must hold one id (number or text) for each of {n_rows} rows, got {units.dtype} {units.shape}"
        )
    return units


def _parts(n_rows: int, units: Array | None) -> Iterator[Array | slice]:
    """Rows at a time; documents whole, with their rows wherever they stand."""
    if units is None:
        return (slice(start, start + PART) for start in range(0, n_rows, PART))
    order = np.argsort(units, kind="stable")
    ends = np.flatnonzero(np.append(units[order][1:] != units[order][:-1], True)) + 1
    cuts = [0]
    for end in ends.tolist():
        if end - cuts[-1] >= PART or end == n_rows:
            cuts.append(end)
    return (order[a:b] for a, b in pairwise(cuts))


def _spec(request: Request) -> PrivacySpec:
    return PrivacySpec(
        epsilon=request.epsilon,
        delta=request.delta,
        adjacency=request.adjacency,
        unit="row" if request.units is None else "document",
        document_rows=request.document_rows,
    )


def _bounds(request: Request, public: Public | None) -> Bounds:
    key_norm, query_norm, value_norm = request.norms
    if public is None:
        if key_norm is None or query_norm is None or value_norm is None:
            raise UsageError("without --public the bounds are needed: --key-norm, --query-norm and --value-norm")
        return Bounds(key_norm, query_norm, value_norm)
    if public.values is None and value_norm is None:
        raise UsageError(f"{request.public} has no values; give --value-norm, or keys and values side by side")
    values = torch.eye(2, dtype=torch.float64) if public.values is None else public.values
    fitted = Bounds.from_public(public.keys, values)
    return Bounds(
        key_norm=fitted.key_norm if key_norm is None else key_norm,
        query_norm=fitted.query_norm if query_norm is None else query_norm,
        value_norm=fitted.value_norm if value_norm is None else value_norm,
        key_center=fitted.key_center,
        value_center=None if public.values is None else fitted.value_center,
    )


def _features(request: Request, public: Public | None, bounds: Bounds, d: int) -> FeatureMap:
    if request.features == "taylor":
        return PolynomialFeatures(d, request.degree).taylor(request.beta)
    if public is None:
        raise UsageError(
            f"--features {request.features} is fitted on public keys: give --public, or take --features taylor"
        )
    centered = public.keys - torch.as_tensor(bounds.key_center)
    if request.features == "nystrom":
        return NystromFeatures(centered[: request.cells], request.beta)
    if request.features == "codebook":
        return CodebookFeatures.fit_public(centered, min(request.cells, len(centered)), request.beta)
    queries = public.keys[:1000]
    longest = torch.linalg.vector_norm(queries, dim=1, keepdim=True) / bounds.query_norm
    return PolynomialFeatures(d, request.degree).fit_public(
        (queries / longest.clamp_min(1.0)) @ centered[:1000].T, request.beta
    )


def _finish(request: Request, memory: PrivateKV, public: Public | None) -> PrivateKV:
    """Post-processing of the release: the prior, and the check of the accuracy asked for."""
    if request.use_prior:
        if public is None or public.values is None:
            raise UsageError("--prior needs public keys and values: give --public with both")
        memory = PublicPrior(public.keys, public.values).denoise(memory)
    if request.accuracy is not None:
        share = noise_share(memory, public)
        if not share <= positive("accuracy", request.accuracy):
            raise UsageError(
                f"too few rows for the accuracy asked: noise is {share:.2g} of a typical answer, "
                f"not {request.accuracy:g}; add rows, raise epsilon, lower beta or degree (nothing was written)"
            )
    return memory


def noise_share(memory: PrivateKV, public: Public | None) -> float:
    """Noise as a share of a typical answer, from the release alone: the median of ‖stderr‖ / ‖output‖ over queries."""
    d, longest = memory.facts.kernel.d, memory.facts.bounds.query_norm
    queries = torch.eye(d, dtype=torch.float64) * longest if public is None else public.keys[:500]
    answer = memory.attend(queries)
    return float((answer.stderr.norm(dim=1) / answer.output.norm(dim=1)).median())


def _tell(memory: PrivateKV, folder: Path, as_json: bool) -> None:
    if as_json:
        print_json(memory.report().to_json())
        return
    spec = memory.facts.spec
    verdict = f"({spec.epsilon:g}, {spec.delta:g})-DP" if memory.facts.is_private else "NOT PRIVATE (seeded)"
    size = sum(file.stat().st_size for file in folder.iterdir())
    stdout().print(f"{folder}: {verdict}, {memory.facts.kernel.n_features} features, {size / 1e6:.2f} MB", markup=False)
