"""Private rows → exact integer totals. The only code that touches a raw row, and it keeps none.

total[h] = Σ_i φ_int(k_ih) u_int(v_ih)ᵀ              a document's own sum is first shortened to norm ≤ C
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from splitveil.check import UsageError
from splitveil.private_attention.kernel import Kernel
from splitveil.private_attention.lattice import (
    FEATURE_BITS,
    FEATURE_CAP,
    enforce_cap,
    to_unit_ball,
    truncate_,
    value_integers,
)
from splitveil.private_attention.spec import Bounds

CHUNK_CELLS = 2**19  # features × rows at a time: 4 MB of float64 stay in cache, whatever the number of rows
EXACT_ROWS = 2**17  # |Σ φ_int u_int| ≤ 2¹⁷ · 2³⁵ < 2⁵³
NORM_BITS = 20  # a document's norm is bounded from its cells' leading bits, whose squares sum exactly in int64
ROUNDING = 1 - 2.0**-40  # more than covers the rounding of one product

Total = Int[Tensor, "head feature column"]
UnitIds = Sequence[int] | Sequence[str] | Shaped[Tensor, "row"]


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
        total = torch.zeros(self.shape, dtype=torch.int64, device=keys.device)
        for span in _spans(len(keys), EXACT_ROWS):
            for h in range(self.heads):
                total[h] += self._sum(keys[span, h], values[span, h], h)
        return total

    def documents(
        self, keys: Float[Tensor, "row head d"], values: Float[Tensor, "row head dv"], ids: UnitIds, cap: int
    ) -> Total:
        """Σ over documents of their shortened sums."""
        total = torch.zeros(self.shape, dtype=torch.int64, device=keys.device)
        for rows in group_rows(ids, len(keys)).values():
            index = torch.tensor(rows, device=keys.device)
            total += torch.stack([shorten(head, cap) for head in self.rows(keys[index], values[index])])
        return total

    def features(
        self, keys: Float[Tensor, "row d"], head: int = 0
    ) -> tuple[Float[Tensor, "row d"], Float[Tensor, "feature row"]]:
        """Keys as they count (centered, clipped) and their φ, in real units. For public keys."""
        center = _of_head(self.bounds.key_center, head, keys)
        unit = to_unit_ball(keys, self.bounds.key_norm, center)
        phi = enforce_cap(truncate_(self.kernel.lift(unit.T.contiguous())), FEATURE_CAP)
        return unit * self.bounds.key_norm, phi * (self.kernel.norm / (1 << FEATURE_BITS))

    def _sum(self, keys: Tensor, values: Tensor, head: int) -> Int[Tensor, "feature column"]:
        """Σ over at most 2¹⁷ rows, so that float64 holds every partial sum exactly; two buffers serve all its parts."""
        _, features, columns = self.shape
        size = max(1, min(CHUNK_CELLS // features, len(keys)))
        room = torch.empty(2, features * size, dtype=torch.float64, device=keys.device)
        total = torch.zeros(columns, features, dtype=torch.float64, device=keys.device)
        key_center, value_center = (
            _of_head(center, head, keys) for center in (self.bounds.key_center, self.bounds.value_center)
        )
        for part in _spans(len(keys), size):
            unit_keys = to_unit_ball(keys[part], self.bounds.key_norm, key_center)
            unit_values = to_unit_ball(values[part], self.bounds.value_norm, value_center)
            phi, spare = (buffer[: features * len(unit_keys)].view(features, -1) for buffer in room)
            phi = enforce_cap(truncate_(self.kernel.lift(unit_keys.T.contiguous(), phi)), FEATURE_CAP, spare)
            u = value_integers(unit_values, self.bounds.value_norm, self.count)
            total.addmm_(u.T, phi.T)  # the narrow side first: a third faster for d_v of 64
        return total.T.to(torch.int64)


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
    """Row numbers of each unit, in order of first appearance."""
    plain = ids.tolist() if isinstance(ids, Tensor) else list(ids)
    if len(plain) != n_rows:
        raise UsageError(f"unit_ids must name the unit of each of the {n_rows} rows, got {len(plain)} ids")
    groups: dict[object, list[int]] = {}
    for row, unit in enumerate(plain):
        groups.setdefault(unit, []).append(row)
    return groups


def _spans(n_rows: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, n_rows, size))


def _of_head(center: object, head: int, like: Tensor) -> Tensor | None:
    if not isinstance(center, Tensor):
        return None
    return (center[head] if center.ndim == 2 else center).to(like.device)


def _axes(heads: int, width: int) -> str:
    return f"{width}" if heads == 1 else f"{heads}, {width}"
