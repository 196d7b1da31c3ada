"""Rows in, one release out, nothing kept.

    add(K, V)  →  exact integer total, updated in place; the rows are not stored
    release()  →  total + discrete Gaussian noise; the total is overwritten with zeros and the builder is spent

The noise is fixed by the spec, the bounds and the features before a row is seen.
"""

import hashlib
from typing import NoReturn

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.check import RunError, UsageError, positive
from splitveil.private_attention.encoder import Encoder, Total, UnitIds, group_rows
from splitveil.private_attention.facts import ReleaseFacts
from splitveil.private_attention.kernel import FeatureMap
from splitveil.private_attention.lattice import MOST_ROWS
from splitveil.private_attention.memory import PrivateKV
from splitveil.private_attention.sampler import LatticeSampler, choose_sampler
from splitveil.private_attention.sensitivity import calibrate, default_count, document_cap, row_sensitivity2
from splitveil.private_attention.spec import Bounds, PrivacySpec


class Builder:
    """Collects private rows for one `PrivateKV`. Made by `PrivateKV.builder`.

    Guarantees: noise is calibrated before the first row is seen; rows beyond the bounds are clipped, rows with NaN or
    infinities count as rows at the centers, and neither is ever reported; memory use does not depend on the number of
    rows; a second release raises; a builder is never pickled.
    """

    def __init__(
        self,
        spec: PrivacySpec,
        bounds: Bounds,
        features: FeatureMap,
        dv: int,
        *,
        heads: int = 1,
        count: float | None = None,
        seed: int | None = None,
        sampler: LatticeSampler | None = None,
    ) -> None:
        encoder = make_encoder(spec, bounds, features, dv, heads=heads, count=count)
        self._sampler = choose_sampler(seed) if sampler is None else sampler
        unit2 = row_sensitivity2(spec, encoder.kernel, bounds.value_norm, encoder.count)
        cells = encoder.shape[1] * encoder.shape[2]
        self._facts = ReleaseFacts(
            spec=spec,
            bounds=bounds,
            kernel=encoder.kernel,
            dv=dv,
            heads=heads,
            count=encoder.count,
            calibration=calibrate(spec, unit2, self._sampler, heads=heads, cells=cells),
            sampler=self._sampler.name,
            is_private=self._sampler.is_private,
        )
        self._encoder = encoder
        self._total: Total | None = None
        self._n_rows = 0
        self._seen: set[bytes] = set()
        self._is_spent = False

    @property
    def facts(self) -> ReleaseFacts:
        """Everything public about the release to come."""
        return self._facts

    def add(
        self,
        keys: Float[Tensor, "row *key"],
        values: Float[Tensor, "row *value"],
        unit_ids: UnitIds | None = None,
    ) -> "Builder":
        """Add rows: (n, d) and (n, d_v), or (n, H, d) and (n, H, d_v). With unit="document", `unit_ids` names each
        row's document, and all rows of a document come in one call."""
        if self._is_spent:
            raise UsageError("this memory has been released; start a new builder (its release costs privacy again)")
        keys, values = self._encoder.check(keys, values)
        if self._n_rows + len(keys) > MOST_ROWS:
            raise RunError(f"a memory holds at most {MOST_ROWS} rows; build several and compose them in a Ledger")
        part = self._encode(keys, values, unit_ids)
        self._total = part if self._total is None else self._total.add_(part.to(self._total.device))
        self._n_rows += len(keys)
        return self

    def release(self) -> PrivateKV:
        """The private memory. Once: the exact total is wiped."""
        if self._is_spent:
            raise UsageError("this memory has been released already; a second release would cost privacy again")
        self._is_spent = True
        shape, device = self._encoder.shape, torch.device("cpu") if self._total is None else self._total.device
        cells = shape[0] * shape[1] * shape[2]
        released = torch.from_numpy(self._sampler.draw(self._facts.calibration.scale, cells)).reshape(shape).to(device)
        if self._total is not None:
            released += self._total
            self._total.zero_()
        self._total, self._n_rows = None, 0
        self._seen.clear()
        return PrivateKV(self._facts, released.double() * self._facts.step)

    def _encode(self, keys: Tensor, values: Tensor, unit_ids: UnitIds | None) -> Total:
        spec = self._facts.spec
        if spec.unit == "row":
            if unit_ids is not None:
                raise UsageError('unit_ids are for unit="document"; with unit="row" every row is its own unit')
            return self._encoder.rows(keys, values)
        if unit_ids is None:
            raise UsageError('unit="document" needs unit_ids: the document of each row')
        self._remember(group_rows(unit_ids, len(keys)))
        return self._encoder.documents(keys, values, unit_ids, document_cap(spec))

    def _remember(self, groups: dict[object, list[int]]) -> None:
        digests = {hashlib.blake2b(repr(unit).encode(), digest_size=16).digest() for unit in groups}
        if digests & self._seen:
            raise UsageError(
                "a document came in two calls of add, which would count it twice; pass all its rows in one call"
            )
        self._seen |= digests

    def __reduce__(self) -> NoReturn:
        raise UsageError("a builder holds private sums and is not pickled; release it first")


def make_encoder(
    spec: PrivacySpec, bounds: Bounds, features: FeatureMap, dv: int, *, heads: int, count: float | None
) -> Encoder:
    """The encoder of a builder or a stream, its arguments checked."""
    if dv < 1 or heads < 1:
        raise UsageError(f"a memory needs dv ≥ 1 and heads ≥ 1, got dv={dv}, heads={heads}")
    for name, center, width in (
        ("key_center", bounds.key_center, features.d),
        ("value_center", bounds.value_center, dv),
    ):
        if isinstance(center, Tensor) and tuple(center.shape) not in {(width,), (heads, width)}:
            raise UsageError(f"{name} must have shape ({width},) or ({heads}, {width}), got {tuple(center.shape)}")
    kernel = features.bind(bounds)
    if count is None:
        count = default_count(spec, kernel, bounds.value_norm, dv)
    return Encoder(bounds, kernel, dv, heads, positive("count", count))
