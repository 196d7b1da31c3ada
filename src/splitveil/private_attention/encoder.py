"""Private rows → exact integer totals. The only code that touches a raw row, and it keeps none.

    total[h] = Σ_i φ_int(k_ih) u_int(v_ih)ᵀ              a document's own sum is first shortened to norm ≤ C

Rows are lifted a few hundred at a time in two reused buffers: memory does not depend on their number.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from splitveil.check import UsageError
from splitveil.private_attention.kernel import Kernel
from splitveil.private_attention.lattice import (
    FEATURE_BITS,
    FEATURE_CAP,
    VALUE_BITS,
    enforce_cap,
    to_unit_ball,
    truncate_,
    value_integers,
)
from splitveil.private_attention.spec import Bounds

CHUNK_CELLS = 2**19  # features × rows at a time: 4 MB of float64 stay in cache, whatever the number of rows
DEVICE_CELLS = 2**25  # on an accelerator: 256 MB, so that launches do not dominate
EXACT_ROWS = 2**17  # |Σ φ_int u_int| ≤ 2¹⁷ · 2³⁵ < 2⁵³
NORM_BITS = 20  # a document's norm is bounded from its cells' leading bits, whose squares sum exactly in int64
ROW_NORM = 1 << (FEATURE_BITS + VALUE_BITS)  # a row's largest Frobenius norm
ROUNDING = 1 - 2.0**-40  # more than covers the rounding of one product

Total = Int[Tensor, "head feature column"]
UnitIds = Sequence[int] | Sequence[str] | Sequence[np.generic] | np.ndarray | Shaped[Tensor, "row"]


@dataclass(frozen=True, eq=False)
class Encoder:
    """Maps rows to integers within the bounds and adds them up.

    Guarantees: `total` is the same for every order of rows, batch size and number of threads; for every unit the
    Frobenius norm of its part is at most 2³⁵ (a row) or C (a document), whatever the row holds.
    """

    bounds: Bounds
    kernel: Kernel
    dv: int
    heads: int
    count: float

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of a total: head, feature, column."""
        return self.heads, self.kernel.n_features, self.dv + 1

    def check(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Rows as (row, head, d) and (row, head, d_v)."""
        if self.heads == 1 and keys.ndim == 2 and values.ndim == 2:
            keys, values = keys[:, None], values[:, None]
        wanted = (self.heads, self.kernel.d), (self.heads, self.dv)
        if keys.ndim != 3 or values.ndim != 3 or (keys.shape[1:], values.shape[1:]) != wanted:
            raise UsageError(
                f"keys must be (n, {_axes(*wanted[0])}) and values (n, {_axes(*wanted[1])}), "
                f"got {tuple(keys.shape)} and {tuple(values.shape)}"
            )
        if len(keys) != len(values):
            raise UsageError(f"keys and values must have as many rows as each other, got {len(keys)} and {len(values)}")
        return keys.detach(), values.detach()

    def rows(self, keys: Float[Tensor, "row head d"], values: Float[Tensor, "row head dv"]) -> Total:
        """Σ over rows, each its own unit."""
        return torch.stack([self._sum(keys[:, h], values[:, h], h) for h in range(self.heads)])

    def documents(
        self, keys: Float[Tensor, "row head d"], values: Float[Tensor, "row head dv"], ids: UnitIds, cap: int
    ) -> Total:
        """Σ over documents of their sums, each shortened to norm ≤ cap. A document of so few rows that it cannot exceed
        the cap is summed as rows are."""
        always_fits = cap // ROW_NORM
        groups = list(group_rows(ids, len(keys)).values())
        short = [row for rows in groups if len(rows) <= always_fits for row in rows]
        total = self.rows(keys[short], values[short])
        size = max(1, _cells_at_a_time(keys.device) // self.kernel.n_features)
        for batch in _batches([rows for rows in groups if len(rows) > always_fits], size):
            for h in range(self.heads):
                for part in self._sums(keys[:, h], values[:, h], h, batch):
                    total[h] += shorten(part, cap)
        return total

    def _sums(
        self, keys: Tensor, values: Tensor, head: int, batch: list[list[int]]
    ) -> Iterator[Int[Tensor, "feature column"]]:
        """The sum of each document of a batch; one that is longer than a chunk is alone in its batch."""
        if len(batch) == 1:
            yield self._sum(keys[batch[0]], values[batch[0]], head)
            return
        index = [row for rows in batch for row in rows]
        _, phi = self.integers(keys[index], head)
        u = self._values(values[index], head)
        start = 0
        for rows in batch:
            part = slice(start, start + len(rows))
            yield (phi[:, part] @ u[part]).to(torch.int64)
            start += len(rows)

    def integers(
        self, keys: Float[Tensor, "row d"], head: int = 0, room: Float[Tensor, "2 cell"] | None = None
    ) -> tuple[Float[Tensor, "row d"], Float[Tensor, "feature row"]]:
        """Keys as they count (centered, clipped, over R) and φ_int."""
        unit = to_unit_ball(keys, self.bounds.key_norm, _of_head(self.bounds.key_center, head, keys))
        cells = self.kernel.n_features * len(keys)
        out, spare = (None, None) if room is None else (r[:cells].view(-1, len(keys)) for r in room)
        phi = truncate_(self.kernel.lift(unit.T.contiguous(), out))
        return unit, enforce_cap(phi, FEATURE_CAP, spare)

    def features(
        self, keys: Float[Tensor, "row d"], head: int = 0
    ) -> tuple[Float[Tensor, "row d"], Float[Tensor, "feature row"]]:
        """Keys as they count and their φ, in real units. For public keys."""
        unit, phi = self.integers(keys, head)
        return unit * self.bounds.key_norm, phi * (self.kernel.norm / (1 << FEATURE_BITS))

    def _values(self, values: Tensor, head: int) -> Float[Tensor, "row column"]:
        unit = to_unit_ball(values, self.bounds.value_norm, _of_head(self.bounds.value_center, head, values))
        return value_integers(unit, self.bounds.value_norm, self.count)

    def _sum(self, keys: Tensor, values: Tensor, head: int) -> Int[Tensor, "feature column"]:
        """Σ over any number of rows: up to 2¹⁷ at a time in float64, which holds such sums exactly, then in int64."""
        _, features, columns = self.shape
        size = max(1, min(_cells_at_a_time(keys.device) // features, len(keys)))
        room = torch.empty(2, features * size, dtype=torch.float64, device=keys.device)  # serves every part
        total = torch.zeros(features, columns, dtype=torch.int64, device=keys.device)
        for span in _spans(len(keys), EXACT_ROWS):
            sums = torch.zeros(columns, features, dtype=torch.float64, device=keys.device)
            for part in _spans(len(keys[span]), size):
                _, phi = self.integers(keys[span][part], head, room)
                sums.addmm_(self._values(values[span][part], head).T, phi.T)  # narrow side first: a third faster
            total += sums.T.to(torch.int64)
        return total


def shorten(total: Int[Tensor, "feature column"], cap: int) -> Int[Tensor, "feature column"]:
    """An integer matrix scaled toward zero to Frobenius norm ≤ cap, if it is longer.

    The norm is bounded from above by the cells' leading bits: with a = ⌊|S| / 2^t⌋ ≤ 2²⁰, ‖S‖ ≤ 2^t (‖a‖ + √cells).
    """
    largest = int(total.abs().max()) if total.numel() else 0
    shift = max(0, largest.bit_length() - NORM_BITS)
    lead = total.abs() >> shift
    bound = 2**shift * (math.isqrt(int(lead.square().sum())) + 1 + (math.isqrt(total.numel()) + 1 if shift else 0))
    if bound <= cap:
        return total
    return torch.trunc(total.double() * (cap / bound * ROUNDING)).to(torch.int64)


def group_rows(ids: UnitIds, n_rows: int) -> dict[object, list[int]]:
    """Row numbers of each unit, in order of first appearance. A numpy scalar is the number or word it holds."""
    plain = (
        ids.tolist() if isinstance(ids, Tensor) else [id_.item() if isinstance(id_, np.generic) else id_ for id_ in ids]
    )
    if len(plain) != n_rows:
        raise UsageError(f"unit_ids must name the unit of each of the {n_rows} rows, got {len(plain)} ids")
    groups: dict[object, list[int]] = {}
    for row, unit in enumerate(plain):
        groups.setdefault(unit, []).append(row)
    return groups


def _batches(groups: list[list[int]], size: int) -> Iterator[list[list[int]]]:
    """Documents in runs of at most `size` rows, or one that is longer."""
    batch: list[list[int]] = []
    for rows in groups:
        if batch and sum(map(len, batch)) + len(rows) > size:
            yield batch
            batch = []
        batch.append(rows)
    if batch:
        yield batch


def _cells_at_a_time(device: torch.device) -> int:
    return CHUNK_CELLS if device.type == "cpu" else DEVICE_CELLS


def _spans(n_rows: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, n_rows, size))


def _of_head(center: object, head: int, like: Tensor) -> Tensor | None:
    if not isinstance(center, Tensor):
        return None
    return (center[head] if center.ndim == 2 else center).to(like.device)


def _axes(heads: int, width: int) -> str:
    return f"{width}" if heads == 1 else f"{heads}, {width}"
