"""Ready-made surrogates with our own defaults; what the sources describe, literally, is in literal.py.

All charge the information form (nats a dimension) through a bound, without gates. `parts` holds what may be changed of
the pipeline after the grouping (options.py).
"""

from dataclasses import replace
from typing import Literal

from splitveil.regularizers.entropy.covariance import Correlated
from splitveil.regularizers.entropy.groupings.base import Grouping, Rule
from splitveil.regularizers.entropy.groupings.gated_pooling import GatedPooling
from splitveil.regularizers.entropy.groupings.hybrid import Hybrid
from splitveil.regularizers.entropy.groupings.kmeans import KMeans
from splitveil.regularizers.entropy.groupings.mixture import Mixture
from splitveil.regularizers.entropy.groupings.plain import Plain, Unlabeled
from splitveil.regularizers.entropy.groupings.prior import MixturePrior
from splitveil.regularizers.entropy.groupings.slots import Slots
from splitveil.regularizers.entropy.hinge import Pool
from splitveil.regularizers.entropy.options import Form, Gating, Parts, Trait, hinge
from splitveil.regularizers.entropy.settings import Fitting, Memory
from splitveil.regularizers.entropy.stages import Staged
from splitveil.regularizers.entropy.surrogate import Surrogate
from splitveil.regularizers.entropy.vectors import ToVectors

How = Literal["flatten", "pool", "tokens"]
Center = Literal["remembered", "batch"]
CAPACITY = 20_000  # members a reservoir holds


def plain(
    *,
    form: Form = "information",
    pool: Pool = "after_log",
    vectors: How | ToVectors = "flatten",
    parts: Parts | None = None,
) -> Surrogate:
    """Class variance: the baseline, and hard to beat."""
    return _surrogate(Plain(), "classes", form=form, pool=pool, vectors=vectors, parts=parts)


def unlabeled(
    *,
    form: Form = "information",
    pool: Pool = "after_log",
    vectors: How | ToVectors = "flatten",
    parts: Parts | None = None,
) -> Surrogate:
    """Variance of the whole batch; needs no labels, so it also serves regression."""
    return _surrogate(Unlabeled(), form=form, pool=pool, vectors=vectors, parts=parts)


def kmeans(
    *,
    n_groups: int = 5,
    center: Center = "remembered",
    weights: Literal["batch", "remembered"] = "batch",
    widest: float | None = None,
    form: Form = "information",
    pool: Pool = "after_log",
    vectors: How | ToVectors = "flatten",
    refit_every: int = 1,
    capacity: int = CAPACITY,
    parts: Parts | None = None,
) -> Surrogate:
    """Spread about the nearest of K remembered centers a class; groups `widest` × their class's mean are re-seeded."""
    grouping = KMeans(n_groups=n_groups, center=center, weights=weights, widest=widest)
    memory = Memory(capacity=capacity, refit_every=refit_every)
    return _surrogate(grouping, "classes", "groups", form=form, pool=pool, vectors=vectors, parts=parts, memory=memory)


def mixture(
    *,
    n_groups: int = 5,
    covariance: Literal["diagonal", "full"] = "diagonal",
    center: Center = "remembered",
    form: Form = "information",
    pool: Pool = "after_log",
    vectors: How | ToVectors = "flatten",
    refit_every: int = 1,
    capacity: int = CAPACITY,
    parts: Parts | None = None,
) -> Surrogate:
    """Spread within the components of a Gaussian mixture a class, refitted by EM."""
    grouping = Mixture(n_groups=n_groups, covariance=covariance, center=center)
    memory = Memory(capacity=capacity, refit_every=refit_every)
    return _surrogate(grouping, "classes", "groups", form=form, pool=pool, vectors=vectors, parts=parts, memory=memory)


def gated_pooling(
    *,
    hidden: int | None = None,
    fit: Rule | Fitting = "ascent",
    form: Form = "information",
    pool: Pool = "after_log",
    vectors: How | ToVectors = "flatten",
    parts: Parts | None = None,
) -> Surrogate:
    """Spread under the worst weighting that gated attention finds, never less than the plain one."""
    fitting = fit if isinstance(fit, Fitting) else Fitting(rule=fit, every=2)
    return _surrogate(
        GatedPooling(hidden=hidden), "classes", form=form, pool=pool, vectors=vectors, parts=parts, fitting=fitting
    )


def slots(
    *,
    n_slots: int = 8,
    n_rounds: int = 3,
    slot_dim: int | None = None,
    n_heads: int = 4,
    sharpen: float = 1.0,
    fit: Rule | Fitting = "likelihood",
    form: Form = "information",
    pool: Pool = "after_log",
    vectors: How | ToVectors = "flatten",
    parts: Parts | None = None,
) -> Surrogate:
    """Spread within the slots of slot attention and gated cross-attention."""
    grouping = Slots(n_slots=n_slots, n_rounds=n_rounds, slot_dim=slot_dim, n_heads=n_heads, sharpen=sharpen)
    fitting = fit if isinstance(fit, Fitting) else Fitting(rule=fit, lr=2e-3, every=4)
    return _surrogate(
        grouping, "classes", "groups", form=form, pool=pool, vectors=vectors, parts=parts, fitting=fitting
    )


def mixture_prior(*, n_groups: int = 5, window: int = 2000, vectors: How | ToVectors = "flatten") -> MixturePrior:
    """The cost of a member under a mixture of its class that is learned as training goes."""
    return MixturePrior(n_groups=n_groups, window=window, vectors=_vectors(vectors))


def hybrid(
    *,
    n_groups: int = 5,
    hidden: int | None = None,
    center: Center = "remembered",
    widest: float | None = None,
    form: Form = "information",
    pool: Pool = "after_log",
    vectors: How | ToVectors = "flatten",
    refit_every: int = 1,
    capacity: int = CAPACITY,
    parts: Parts | None = None,
) -> Surrogate:
    """K-means seeded by attention."""
    grouping = Hybrid(n_groups=n_groups, hidden=hidden, center=center, widest=widest)
    memory = Memory(capacity=capacity, refit_every=refit_every)
    return _surrogate(grouping, "classes", "groups", form=form, pool=pool, vectors=vectors, parts=parts, memory=memory)


def correlated(
    *, rank: int = 8, refit_every: int = 1, capacity: int = CAPACITY, vectors: How | ToVectors = "flatten"
) -> Correlated:
    """Log-determinant of a low-rank plus diagonal class covariance."""
    return Correlated(rank=rank, memory=Memory(capacity=capacity, refit_every=refit_every), vectors=_vectors(vectors))


def staged(
    *,
    at_epoch: int = 5,
    n_slots: int = 8,
    n_rounds: int = 3,
    slot_dim: int | None = None,
    hidden: int | None = None,
    form: Form = "information",
    pool: Pool = "after_log",
    vectors: How | ToVectors = "flatten",
    parts: Parts | None = None,
) -> Staged:
    """Gated pooling first, slots later, their class gate set by running shares; `gates: {}` leaves it out.

    Gates and shutoff are those of the slots; hinge, threshold and the rest hold for both.
    """
    both = parts or Parts()
    charging = both.charging and replace(both.charging, shutoff=None, silent_calls=0)
    early = replace(both, gates=None, charging=charging)
    late = both if both.gates is not None else replace(both, gates=Gating(share="running"))
    return Staged(
        gated_pooling(hidden=hidden, form=form, pool=pool, vectors=vectors, parts=early),
        slots(n_slots=n_slots, n_rounds=n_rounds, slot_dim=slot_dim, form=form, pool=pool, vectors=vectors, parts=late),
        at_epoch=at_epoch,
    )


def _surrogate(
    grouping: Grouping,
    *traits: Trait,
    form: Form,
    pool: Pool,
    vectors: How | ToVectors,
    parts: Parts | None,
    fitting: Fitting | None = None,
    memory: Memory | None = None,
) -> Surrogate:
    chosen = parts or Parts()
    return Surrogate(
        grouping,
        hinge=hinge(form, pool=pool, constants=chosen.hinge),
        gates=chosen.gates_for(*traits),
        threshold=chosen.threshold_for(form),
        vectors=_vectors(vectors),
        charging=chosen.charging,
        fitting=fitting,
        memory=memory,
    )


def _vectors(vectors: How | ToVectors) -> ToVectors:
    return vectors if isinstance(vectors, ToVectors) else ToVectors(vectors)
