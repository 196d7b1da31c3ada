"""A private memory that changes: rows come and go, and a new memory is released at every tick of a clock.

    x_t = exact integer sum of tick t's inserts − deletes      published at t:  ⌊(C x)_t⌋ + discrete Gaussian noise
    M̂_t = B (everything published so far)                      A = B·C  (factorization.py)

All ticks together are one (ε, δ) release: a unit inserted at tick τ moves C x by ‖C_·τ‖·Δ, one that is also deleted
by at most √2 of that, and rounding C x down moves every number by less than 1, √(numbers) in all. Ticks follow the
clock: a tick after every thousandth row would itself tell how many rows there are.

The √2 needs at most one insert and one delete a unit, of the same content. Digests of unit and content are kept to
enforce it.
"""

import hashlib
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Literal, NoReturn

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.check import RunError, UsageError
from splitveil.private_attention.builder import make_encoder
from splitveil.private_attention.encoder import Total, UnitIds, group_rows, shorten
from splitveil.private_attention.factorization import FIXED_BITS, Weights, factorization
from splitveil.private_attention.facts import ReleaseFacts
from splitveil.private_attention.journal import Journal
from splitveil.private_attention.kernel import FeatureMap
from splitveil.private_attention.lattice import MOST_ROWS
from splitveil.private_attention.memory import PrivateKV
from splitveil.private_attention.sampler import choose_sampler
from splitveil.private_attention.sensitivity import calibrate, document_cap, row_sensitivity2
from splitveil.private_attention.spec import Bounds, PrivacySpec

Name = Literal["sqrt_toeplitz", "tree", "independent"]
LOW_BITS = 20  # an increment is split in two so that its products with 2¹⁶ weights stay in int64
MOST_BYTES = 8 * 2**30
DIGEST = 16


class PrivateKVStream:
    """Inserts and deletes over time, one private memory a tick.

    Formal guarantees: all memories of all ticks together are (ε, δ)-DP for units inserted at most once and, with
    `deletions`, deleted at most once. With a `folder` a tick is on disk before it is returned; after a crash the same
    tick is returned again and rows inserted since the last tick are to be inserted anew. Memory is horizon × numbers
    in a memory × 16 bytes.
    """

    def __init__(
        self,
        spec: PrivacySpec,
        bounds: Bounds,
        features: FeatureMap,
        dv: int,
        *,
        horizon: int,
        method: Name = "sqrt_toeplitz",
        deletions: bool = False,
        heads: int = 1,
        folder: Path | str | None = None,
        seed: int | None = None,
    ) -> None:
        self._factors = factorization(method, horizon)
        self._encoder = make_encoder(spec, bounds, features, dv, heads=heads, count=None)
        self._sampler = choose_sampler(seed)
        self._deletions = deletions
        cells = math.prod(self._encoder.shape)
        if 8 * cells * (horizon + self._factors.n_rows) > MOST_BYTES:
            raise UsageError(
                f"{horizon} ticks of {cells} numbers need more than 8 GiB; lower the horizon or the degree"
            )
        self._facts = self._make_facts(spec, bounds)
        self._increments: list[Tensor] = []
        self._published: list[Tensor] = []
        self._units: dict[bytes | None, bytes] = {}  # digest of a unit → of its content, or b"" once deleted
        self._n_rows = 0
        self._open()
        self._journal = None if folder is None else Journal(Path(folder))
        self._salt = os.urandom(DIGEST)
        if self._journal is not None:
            self._resume(self._journal)

    @property
    def facts(self) -> ReleaseFacts:
        """Everything public about the stream as a whole."""
        return self._facts

    @property
    def ticks(self) -> int:
        """Ticks published so far."""
        return len(self._increments)

    def insert(
        self, keys: Float[Tensor, "row *key"], values: Float[Tensor, "row *value"], unit_ids: UnitIds | None = None
    ) -> None:
        """Rows that are present from the next tick on. Units need ids if they are documents or may be deleted."""
        parts = self._parts(keys, values, unit_ids)
        if any(unit in self._units for unit, _ in parts):
            raise UsageError("a unit was inserted before; a second insert would break the guarantee")
        for unit, part in parts:
            if unit is not None:
                self._new[unit] = self._units[unit] = self._digest(part.numpy().tobytes())
            self._increment += part

    def delete(self, keys: Float[Tensor, "row *key"], values: Float[Tensor, "row *value"], unit_ids: UnitIds) -> None:
        """Take back units inserted before, with the same rows."""
        if not self._deletions:
            raise UsageError("this stream was made without deletions=True, which its noise depends on")
        parts = self._parts(keys, values, unit_ids)
        if any(self._units.get(unit) != self._digest(part.numpy().tobytes()) for unit, part in parts):
            raise UsageError("a unit to delete was never inserted, was deleted before, or had other rows")
        for unit, part in parts:
            self._new[unit] = self._units[unit] = b""
            self._increment -= part

    def tick(self) -> PrivateKV:
        """Close this tick and release the memory of everything present. On disk first, if there is a folder."""
        if self.ticks == self._factors.horizon:
            raise UsageError(f"the stream's horizon of {self._factors.horizon} ticks is used up; start a new stream")
        increments = [*self._increments, self._increment]
        published = torch.stack([self._publish(weights, increments) for weights in self._factors.encode(self.ticks)])
        if self._journal is not None:
            state = {"increment": self._increment, "published": published, "units": _pack(self._new)}
            self._journal.write(self.ticks, state)
        self._increments.append(self._increment)
        self._published.extend(published)
        self._open()
        return self.current()

    def current(self) -> PrivateKV:
        """The memory of the last tick; the same bits every time."""
        if not self.ticks:
            raise UsageError("no tick has been published yet; call tick() first")
        weights = self._factors.decode(self.ticks - 1)
        steps = sum((w * p.double() for w, p in zip(weights, self._published, strict=True)), torch.zeros(()).double())
        note = f"tick {self.ticks} of {self._factors.horizon} of one stream, whose cost covers all its ticks"
        facts = replace(self._facts, noise_factor=float(np.linalg.norm(weights)), notes=(note,))
        return PrivateKV(facts, steps * facts.step)

    def close(self) -> None:
        """Wipe the exact sums and free the folder."""
        for exact in (*self._increments, self._increment):
            exact.zero_()
        if self._journal is not None:
            self._journal.close()

    def _publish(self, weights: Weights, increments: list[Tensor]) -> Tensor:
        exact = weighted_floor(weights, increments)
        noise = torch.from_numpy(self._sampler.draw(self._facts.calibration.scale, exact.numel()))
        return exact + noise.reshape(exact.shape)

    def _make_facts(self, spec: PrivacySpec, bounds: Bounds) -> ReleaseFacts:
        encoder, factors = self._encoder, self._factors
        unit2 = row_sensitivity2(spec, encoder.kernel, bounds.value_norm, encoder.count)
        cells = encoder.shape[1] * encoder.shape[2] * factors.n_rows
        sensitivity2 = stream_sensitivity2(unit2, factors.column_square, deletions=self._deletions, numbers=cells)
        return ReleaseFacts(
            spec=spec,
            bounds=bounds,
            kernel=encoder.kernel,
            dv=encoder.dv,
            heads=encoder.heads,
            count=encoder.count,
            calibration=calibrate(spec, sensitivity2, self._sampler, heads=encoder.heads, cells=cells),
            sampler=self._sampler.name,
            is_private=self._sampler.is_private,
        )

    def _parts(self, keys: Tensor, values: Tensor, unit_ids: UnitIds | None) -> list[tuple[bytes | None, Total]]:
        """(digest of the unit, its exact contribution); rows without ids come as one anonymous part."""
        keys, values = (x.cpu() for x in self._encoder.check(keys, values))
        spec = self._facts.spec
        self._n_rows += len(keys)
        if self._n_rows > MOST_ROWS:
            raise RunError(f"a stream takes at most {MOST_ROWS} inserts and deletes; start a new one")
        if unit_ids is None:
            if self._deletions or spec.unit == "document":
                raise UsageError("unit_ids are needed: documents and units that may be deleted are told apart by them")
            return [(None, self._encoder.rows(keys, values))]
        parts: list[tuple[bytes | None, Total]] = []
        for unit, rows in group_rows(unit_ids, len(keys)).items():
            if spec.unit == "row" and len(rows) > 1:
                raise UsageError('with unit="row" every row needs an id of its own')
            index = torch.tensor(rows)
            part = self._encoder.rows(keys[index], values[index])
            if spec.unit == "document":
                part = torch.stack([shorten(head, document_cap(spec)) for head in part])
            parts.append((self._digest(repr(unit).encode()), part))
        return parts

    def _digest(self, content: bytes) -> bytes:
        return hashlib.blake2b(content, digest_size=DIGEST, key=self._salt).digest()

    def _open(self) -> None:
        self._increment = torch.zeros(self._encoder.shape, dtype=torch.int64)
        self._new: dict[bytes | None, bytes] = {}

    def _resume(self, journal: Journal) -> None:
        wanted = self._facts.to_json() | {
            "horizon": self._factors.horizon,
            "method": self._factors.name,
            "deletions": self._deletions,
            "salt": self._salt.hex(),
        }
        self._salt = bytes.fromhex(journal.settings(wanted)["salt"])
        for state in journal.read():
            self._increments.append(state["increment"])
            self._published.extend(state["published"])
            self._units.update(_unpack(state["units"]))

    def __reduce__(self) -> NoReturn:
        raise UsageError("a stream holds private sums and is not pickled; give it a folder and resume from there")


def stream_sensitivity2(unit2: int, column_square: int, *, deletions: bool, numbers: int) -> int:
    """Δ² of everything a stream publishes: (√(times · Δ_unit² · Σ C²) + √numbers)², rounded up."""
    times = 2 if deletions else 1
    moved = math.isqrt(times * unit2 * column_square >> 2 * FIXED_BITS) + 1
    return (moved + math.isqrt(numbers) + 1) ** 2


def weighted_floor(weights: Weights, increments: list[Tensor]) -> Tensor:
    """⌊Σ_k weights_k x_k / 2¹⁶⌋, exactly, for |Σ x| < 2⁶²: the high and the low bits of x are multiplied apart."""
    high = torch.zeros_like(increments[0])
    low = torch.zeros_like(increments[0])
    for weight, x in zip(weights.tolist(), increments, strict=True):
        if weight:
            high += weight * (x >> LOW_BITS)
            low += weight * (x & ((1 << LOW_BITS) - 1))
    return (high << (LOW_BITS - FIXED_BITS)) + (low >> FIXED_BITS)


def _pack(units: dict[bytes | None, bytes]) -> Tensor:
    """Digests as bytes; a deleted unit's content is all zeros."""
    joined = b"".join(unit + content.ljust(DIGEST, b"\0") for unit, content in units.items() if unit)
    return torch.frombuffer(bytearray(joined), dtype=torch.uint8) if joined else torch.zeros(0, dtype=torch.uint8)


def _unpack(packed: Tensor) -> dict[bytes | None, bytes]:
    raw, width = packed.numpy().tobytes(), 2 * DIGEST
    pairs = (raw[i : i + width] for i in range(0, len(raw), width))
    return {pair[:DIGEST]: (pair[DIGEST:] if any(pair[DIGEST:]) else b"") for pair in pairs}
