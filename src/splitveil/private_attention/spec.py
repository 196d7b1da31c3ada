"""What is promised, and the public facts the promise rests on.

    PrivacySpec   (ε, δ), who counts as one unit, and what "neighboring" means
    Bounds        ‖k − key_center‖ ≤ R,   ‖q‖ ≤ Q,   ‖v − value_center‖ ≤ R_w

Softmax weights do not change when one vector is subtracted from every key, and they sum to one, so a public center
may be taken from keys and values at no loss: rows are clipped around it, and a smaller radius means less noise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.check import UsageError, one_of, positive

Adjacency = Literal["add_remove", "replace_one"]
Unit = Literal["row", "document"]
MOST_NORM = 1e150  # its square is still a float
Center = Tensor | Sequence[float] | Sequence[Sequence[float]] | None  # one vector, or one a head


@dataclass(frozen=True)
class PrivacySpec:
    """The guarantee asked for.

    `adjacency`: neighbors differ by one unit that is present or absent ("add_remove": the number of units is secret
    too), or by the content of one unit ("replace_one": the number of units is public). `unit`: one row, or one
    document of several rows, whose whole contribution is clipped to that of `document_rows` rows. `shares`: how many
    memories made from the same units (layers of a network, say) share this one (ε, δ).
    """

    epsilon: float
    delta: float
    adjacency: Adjacency = "add_remove"
    unit: Unit = "row"
    document_rows: float = 1.0
    shares: int = 1

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon, hint="0 would mean an answer that ignores the rows")
        if not 0 < self.delta < 1:
            raise UsageError(f"delta must lie in (0, 1), got {self.delta}; well below 1/n, 1e-6 say")
        one_of("adjacency", self.adjacency, ("add_remove", "replace_one"))
        one_of("unit", self.unit, ("row", "document"))
        positive("document_rows", self.document_rows)
        if self.shares < 1:
            raise UsageError(f"shares must be ≥ 1, got {self.shares}; it counts the memories made from the same units")


@dataclass(frozen=True, eq=False)
class Bounds:
    """Norms that rows and queries are held to, and centers they are measured from. Public facts only: a bound read
    off the private rows would leak them.

    Centers may be one vector or one a head. A query longer than `query_norm` is shortened to it and its answer flagged.
    """

    key_norm: float
    query_norm: float
    value_norm: float
    key_center: Center = None
    value_center: Center = None

    def __post_init__(self) -> None:
        for name in ("key_norm", "query_norm", "value_norm"):
            positive(name, getattr(self, name))
        if self.value_norm > MOST_NORM:
            raise UsageError(f"value_norm must be ≤ {MOST_NORM:g}, got {self.value_norm:g}; lower it")
        for name in ("key_center", "value_center"):
            object.__setattr__(self, name, _vector(name, getattr(self, name)))

    @classmethod
    def from_public(
        cls,
        keys: Float[Tensor, "*row d"],
        values: Float[Tensor, "*row dv"],
        queries: Float[Tensor, "*query d"] | None = None,
        *,
        quantile: float = 0.99,
    ) -> "Bounds":
        """Centers and norms read off **public** rows: the mean, and the quantile of the distances from it."""
        keys, values = keys.detach().double(), values.detach().double()
        queries = keys if queries is None else queries.detach().double()
        key_center, value_center = keys.mean(0), values.mean(0)
        return cls(
            key_norm=_radius(keys - key_center, quantile),
            query_norm=_radius(queries, 1.0),
            value_norm=_radius(values - value_center, quantile),
            key_center=key_center,
            value_center=value_center,
        )

    @property
    def largest_inner(self) -> float:
        """|⟨q, k − key_center⟩| ≤ Q·R."""
        return self.query_norm * self.key_norm

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments as plain JSON values."""
        return {
            "key_norm": self.key_norm,
            "query_norm": self.query_norm,
            "value_norm": self.value_norm,
            "key_center": _plain(self.key_center),
            "value_center": _plain(self.value_center),
        }


def _vector(name: str, center: Center) -> Tensor | None:
    if center is None:
        return None
    vector = torch.as_tensor(center, dtype=torch.float64).detach().clone()
    if not bool(torch.isfinite(vector).all()):
        raise UsageError(f"{name} must be finite, got NaN or inf; compute it from public rows")
    return vector


def _radius(rows: Tensor, quantile: float) -> float:
    norms = torch.linalg.vector_norm(rows, dim=-1).flatten().sort().values
    radius = float(norms[min(len(norms) - 1, math.ceil(quantile * len(norms)) - 1)])
    return positive("the public rows' norm", radius, hint="public rows must be finite and not all equal")


def _plain(center: Center) -> Any:
    return None if center is None else torch.as_tensor(center).tolist()
