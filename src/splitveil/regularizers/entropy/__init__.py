"""Conditional-entropy surrogates: what the encoder pays for the spread of its features within a class.

Ready-made ones are functions (`kmeans()`, `slots()`, …); `Surrogate` puts one together from its parts.
"""

from splitveil.regularizers.entropy.control import KeepAccuracy
from splitveil.regularizers.entropy.covariance import Correlated
from splitveil.regularizers.entropy.gates import Gates, Share, Snr
from splitveil.regularizers.entropy.groupings.gated_pooling import GatedPooling
from splitveil.regularizers.entropy.groupings.hybrid import Hybrid
from splitveil.regularizers.entropy.groupings.kmeans import KMeans
from splitveil.regularizers.entropy.groupings.mixture import Mixture
from splitveil.regularizers.entropy.groupings.plain import Plain, Unlabeled
from splitveil.regularizers.entropy.groupings.prior import MixturePrior
from splitveil.regularizers.entropy.groupings.slots import Slots
from splitveil.regularizers.entropy.hinge import Information, Linear, Log, Softplus
from splitveil.regularizers.entropy.literal import notes_gated_pooling, notes_slots, published
from splitveil.regularizers.entropy.options import Curve, Gating, Parts, Tau
from splitveil.regularizers.entropy.presets import (
    correlated,
    gated_pooling,
    hybrid,
    kmeans,
    mixture,
    mixture_prior,
    plain,
    slots,
    staged,
    unlabeled,
)
from splitveil.regularizers.entropy.settings import Charging, Fitting, Memory
from splitveil.regularizers.entropy.stages import Staged
from splitveil.regularizers.entropy.surrogate import Surrogate
from splitveil.regularizers.entropy.threshold import Threshold
from splitveil.regularizers.entropy.vectors import ToVectors

__all__ = [
    "Charging",
    "Correlated",
    "Curve",
    "Fitting",
    "GatedPooling",
    "Gates",
    "Gating",
    "Hybrid",
    "Information",
    "KMeans",
    "KeepAccuracy",
    "Linear",
    "Log",
    "Memory",
    "Mixture",
    "MixturePrior",
    "Parts",
    "Plain",
    "Share",
    "Slots",
    "Snr",
    "Softplus",
    "Staged",
    "Surrogate",
    "Tau",
    "Threshold",
    "ToVectors",
    "Unlabeled",
    "correlated",
    "gated_pooling",
    "hybrid",
    "kmeans",
    "mixture",
    "mixture_prior",
    "notes_gated_pooling",
    "notes_slots",
    "plain",
    "published",
    "slots",
    "staged",
    "unlabeled",
]
