"""What happened, apart from what it costs.

A mechanism answers with a frozen event; the ledger adds events up. `NonPrivate` is the honest default: without a
bounded sensitivity there is no ε.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class NonPrivate:
    """No differential-privacy guarantee at all. Composing anything with it stays NonPrivate."""


@dataclass(frozen=True)
class Gaussian:
    """One Gaussian release with noise `std` on a value of l2 sensitivity `sensitivity`: μ = sensitivity / std."""

    sensitivity: float
    std: float


@dataclass(frozen=True)
class Laplace:
    """One Laplace release with noise `scale` on a value of l1 sensitivity `sensitivity`: ε = sensitivity / scale."""

    sensitivity: float
    scale: float


@dataclass(frozen=True)
class Composed:
    """Several releases about the same input, `count` times over."""

    events: tuple["Event", ...]
    count: int = 1


Event = NonPrivate | Gaussian | Laplace | Composed
