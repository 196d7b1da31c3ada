"""Ready-made surrogates: our own defaults first, then what the sources describe, literally, to compare with.

Ours charge the information form (nats a dimension) through a bound, without gates. The literal ones keep the sources'
hinges, gates and fitting, and are known to protect little: the estimator is trained to report a small spread.

    source            warm-up    loss scale        var_threshold    γ
    published         1 epoch    1 (λ = 16)        0.125            0.01
    gated pooling     5 epochs   0.1               0.125            0.01
    slots             3 epochs   0.25              0.125            0.01       and nothing for the first 100 calls
"""

from typing import Literal

from splitveil.regularizers.entropy.covariance import Correlated
from splitveil.regularizers.entropy.gates import Gates, Share, Snr
from splitveil.regularizers.entropy.groupings.base import Rule
from splitveil.regularizers.entropy.groupings.gated_pooling import GatedPooling
from splitveil.regularizers.entropy.groupings.hybrid import Hybrid
from splitveil.regularizers.entropy.groupings.kmeans import KMeans
from splitveil.regularizers.entropy.groupings.mixture import Mixture
from splitveil.regularizers.entropy.groupings.plain import Plain, Unlabeled
from splitveil.regularizers.entropy.groupings.prior import MixturePrior
from splitveil.regularizers.entropy.groupings.slots import Slots
from splitveil.regularizers.entropy.hinge import Hinge, Information, Linear, Log, Pool, Softplus
from splitveil.regularizers.entropy.settings import Charging, Fitting, Memory
from splitveil.regularizers.entropy.stages import Staged
from splitveil.regularizers.entropy.surrogate import Surrogate
from splitveil.regularizers.entropy.threshold import Threshold
from splitveil.regularizers.entropy.vectors import ToVectors

Form = Literal["information", "linear", "log", "softplus"]
How = Literal["flatten", "pool", "tokens"]
GAMMA = 0.01  # inside both logarithms of the published code; at σ = 0.025 it swamps σ²


def hinge(form: Form = "information", *, pool: Pool = "after_log") -> Hinge:
    """The hinge of this name, with its defaults."""
    kinds: dict[Form, type[Hinge]] = {"information": Information, "linear": Linear, "log": Log, "softplus": Softplus}
    return kinds[form](pool=pool)


def plain(*, form: Form = "information", pool: Pool = "after_log", vectors: How = "flatten") -> Surrogate:
    """Class variance: the baseline, and hard to beat."""
    return Surrogate(Plain(), hinge=hinge(form, pool=pool), vectors=ToVectors(vectors))


def unlabeled(*, form: Form = "information", pool: Pool = "after_log", vectors: How = "flatten") -> Surrogate:
    """Variance of the whole batch; needs no labels, so it also serves regression."""
    return Surrogate(Unlabeled(), hinge=hinge(form, pool=pool), vectors=ToVectors(vectors))


def kmeans(
    *,
    n_groups: int = 5,
    center: Literal["remembered", "batch"] = "remembered",
    form: Form = "information",
    pool: Pool = "after_log",
    vectors: How = "flatten",
    refit_every: int = 1,
) -> Surrogate:
    """Spread about the nearest of K remembered centers a class."""
    return Surrogate(
        KMeans(n_groups=n_groups, center=center),
        hinge=hinge(form, pool=pool),
        vectors=ToVectors(vectors),
        memory=Memory(refit_every=refit_every),
    )


def mixture(
    *,
    n_groups: int = 5,
    covariance: Literal["diagonal", "full"] = "diagonal",
    form: Form = "information",
    pool: Pool = "after_log",
    vectors: How = "flatten",
    refit_every: int = 1,
) -> Surrogate:
    """Spread within the components of a Gaussian mixture a class, refitted by EM."""
    return Surrogate(
        Mixture(n_groups=n_groups, covariance=covariance),
        hinge=hinge(form, pool=pool),
        vectors=ToVectors(vectors),
        memory=Memory(refit_every=refit_every),
    )


def gated_pooling(
    *,
    hidden: int | None = None,
    fit: Rule = "ascent",
    form: Form = "information",
    pool: Pool = "after_log",
    vectors: How = "flatten",
) -> Surrogate:
    """Spread under the worst weighting that gated attention finds, never less than the plain one."""
    return Surrogate(
        GatedPooling(hidden=hidden),
        hinge=hinge(form, pool=pool),
        vectors=ToVectors(vectors),
        fitting=Fitting(rule=fit, every=2),
    )


def slots(
    *,
    n_slots: int = 8,
    n_rounds: int = 3,
    slot_dim: int | None = None,
    fit: Rule = "likelihood",
    form: Form = "information",
    pool: Pool = "after_log",
    vectors: How = "flatten",
) -> Surrogate:
    """Spread within the slots of slot attention and gated cross-attention."""
    return Surrogate(
        Slots(n_slots=n_slots, n_rounds=n_rounds, slot_dim=slot_dim),
        hinge=hinge(form, pool=pool),
        vectors=ToVectors(vectors),
        fitting=Fitting(rule=fit, lr=2e-3, every=4),
    )


def mixture_prior(*, n_groups: int = 5, window: int = 2000, vectors: How = "flatten") -> MixturePrior:
    """The cost of a member under a mixture of its class that is learned as training goes."""
    return MixturePrior(n_groups=n_groups, window=window, vectors=ToVectors(vectors))


def hybrid(*, n_groups: int = 5, form: Form = "information", pool: Pool = "after_log") -> Surrogate:
    """K-means seeded by attention."""
    return Surrogate(Hybrid(n_groups=n_groups), hinge=hinge(form, pool=pool))


def correlated(*, rank: int = 8, refit_every: int = 1, vectors: How = "flatten") -> Correlated:
    """Log-determinant of a low-rank plus diagonal class covariance."""
    return Correlated(rank=rank, memory=Memory(refit_every=refit_every), vectors=ToVectors(vectors))


def staged(*, at_epoch: int = 5, n_slots: int = 8) -> Staged:
    """Gated pooling first, slots later."""
    return Staged(gated_pooling(), slots(n_slots=n_slots), at_epoch=at_epoch)


def published(*, n_groups: int = 5, var_threshold: float = 0.125) -> Surrogate:
    """K-means as in the published code, with the index of the class put right: 5 groups for sigmoid nets, else 15."""
    return Surrogate(
        KMeans(n_groups=n_groups, blend=True, until_ready="silent"),
        hinge=Log(pool="before_log", floor=GAMMA),
        threshold=Threshold(var_threshold=var_threshold),
        charging=Charging(account="spread", class_weight="present"),
    )


def notes_gated_pooling(*, var_threshold: float = 0.125) -> Surrogate:
    """Gated pooling as the notes have it: on LayerNormed features, fitted by its own penalty."""
    return Surrogate(
        GatedPooling(alone=True, start="random"),
        hinge=Log(floor=GAMMA),
        threshold=Threshold(var_threshold=var_threshold),
        charging=Charging(account="spread", through=True, space="layernorm"),
        fitting=Fitting(rule="penalty"),
    )


def notes_slots(*, var_threshold: float = 0.125, n_slots: int = 8, silent_calls: int = 100) -> Surrogate:
    """Slots as the notes have them: every gate, softplus, no I_r, all fitted by the penalty itself."""
    return Surrogate(
        Slots(n_slots=n_slots, sharpen=2.0),
        hinge=Softplus(floor=GAMMA),
        gates=Gates(dimension=True, snr=Snr(), mass_power=2.0, share=Share()),
        threshold=Threshold(var_threshold=var_threshold),
        charging=Charging(account="spread", through=True, silent_calls=silent_calls),
        fitting=Fitting(rule="penalty"),
    )
