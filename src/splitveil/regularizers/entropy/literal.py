"""What the sources describe, literally, to compare with: their hinges, gates and fitting, known to protect little.

    source            warm-up    loss scale    λ     shape            var_threshold    γ
    published         1 epoch    0.02          16    constant_step    0.125            0.01
    gated pooling     5 epochs   0.1           –     constant         0.125            0.01
    slots             3 epochs   0.25          –     constant         0.125            0.01       first 100 calls silent

The published code multiplies the gradient by 0.001/lr (until lr < 0.00041, which is left out here) and trains at 0.05:
λ · 0.02 · base/lr is that. The first four columns are `usual` of what each function returns; a term of a config takes
them where it names nothing else. The sources clip and smooth no gradient by default, so neither do these.
"""

from typing import Literal

from splitveil.regularizers.base import Usual
from splitveil.regularizers.entropy.gates import Gates, Share, Snr
from splitveil.regularizers.entropy.groupings.gated_pooling import GatedPooling
from splitveil.regularizers.entropy.groupings.kmeans import KMeans
from splitveil.regularizers.entropy.groupings.slots import Slots
from splitveil.regularizers.entropy.hinge import Log, Softplus
from splitveil.regularizers.entropy.options import SHARPNESS
from splitveil.regularizers.entropy.settings import Charging, Fitting, Memory
from splitveil.regularizers.entropy.surrogate import Surrogate
from splitveil.regularizers.entropy.threshold import Threshold

STEP_SCALE = 0.001 / 0.05  # of the published code: the gradient times 0.001/lr, at a base learning rate of 0.05
GAMMA = 0.01  # inside both logarithms of the published code; at σ = 0.025 it swamps σ²


def published(*, n_groups: int = 5, var_threshold: float = 0.125, refit_every: int = 1) -> Surrogate:
    """K-means as in the published code, with the index of the class put right: 5 groups for sigmoid nets, else 15."""
    made = Surrogate(
        KMeans(n_groups=n_groups, blend=True, until_ready="silent"),
        hinge=Log(pool="before_log", floor=GAMMA),
        threshold=Threshold(var_threshold=var_threshold),
        charging=Charging(account="spread", class_weight="present"),
        memory=Memory(refit_every=refit_every),
    )
    made.usual = Usual(weight=16.0, warmup_epochs=1, shape="constant_step", scale=STEP_SCALE)
    return made


def notes_gated_pooling(*, var_threshold: float = 0.125, hidden: int | None = None) -> Surrogate:
    """Gated pooling as the notes have it: on LayerNormed features, fitted by its own penalty."""
    made = Surrogate(
        GatedPooling(hidden=hidden, alone=True, start="random"),
        hinge=Log(floor=GAMMA),
        threshold=Threshold(var_threshold=var_threshold),
        charging=Charging(account="spread", through=True, space="layernorm"),
        fitting=Fitting(rule="penalty"),
    )
    made.usual = Usual(warmup_epochs=5, scale=0.1)
    return made


def notes_slots(
    *,
    var_threshold: float = 0.125,
    n_slots: int = 8,
    slot_dim: int | None = None,
    sharpen: float = 2.0,
    mass_power: float = 2.0,
    snr: Snr | None = None,
    share: Share | None = None,
    sharpness: float = SHARPNESS,
    margin: float = 0.0,
    silent_calls: int = 100,
    shutoff: float | Literal["running"] | None = None,
) -> Surrogate:
    """Slots as the notes have them: every gate, softplus, no I_r, all fitted by the penalty itself.

    `snr` and `share` hold the constants of those gates, None their defaults; a literal preset has them all.
    """
    made = Surrogate(
        Slots(n_slots=n_slots, slot_dim=slot_dim, sharpen=sharpen),
        hinge=Softplus(floor=GAMMA, sharpness=sharpness, margin=margin),
        gates=Gates(dimension=True, snr=snr or Snr(), mass_power=mass_power, share=share or Share()),
        threshold=Threshold(var_threshold=var_threshold),
        charging=Charging(account="spread", through=True, silent_calls=silent_calls, shutoff=shutoff),
        fitting=Fitting(rule="penalty"),
    )
    made.usual = Usual(warmup_epochs=3, scale=0.25)
    return made
