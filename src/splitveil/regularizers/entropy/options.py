"""What can be said of a ready-made surrogate beside its grouping, as records: hinge constants, τ, gates, charging.

In a config each record is a word, and so is every field of it: `threshold: {quantile: 0.5}` and `quantile: 0.5` are the
same. A constant that a hinge or a grouping does not have is refused, since it would be silently without effect.
"""

from dataclasses import asdict, dataclass
from typing import Literal, final

from splitveil.check import UsageError
from splitveil.regularizers.entropy.gates import Gates, Share, Snr
from splitveil.regularizers.entropy.hinge import FLOOR, Hinge, Information, Linear, Log, Pool, Softplus
from splitveil.regularizers.entropy.settings import Charging
from splitveil.regularizers.entropy.threshold import Threshold

Form = Literal["information", "linear", "log", "softplus"]
Trait = Literal["classes", "groups"]
SHARPNESS = 5.0  # β' of the softplus hinge
CONSTANTS: dict[Form, tuple[str, ...]] = {
    "information": (),
    "linear": (),
    "log": ("floor",),
    "softplus": ("floor", "sharpness", "margin"),
}


@final
@dataclass(frozen=True)
class Curve:
    """γ of the log and softplus hinges, β' and m of the softplus one; None: the default of the form."""

    floor: float | None = None
    sharpness: float | None = None
    margin: float | None = None


@final
@dataclass(frozen=True)
class Tau:
    """τ of the log and softplus hinges: var_threshold · σ², at least the `quantile` of the running spread if given."""

    var_threshold: float = 0.125
    quantile: float | None = None
    momentum: float = 0.99

    def build(self) -> Threshold:
        """The threshold."""
        return Threshold(var_threshold=self.var_threshold, quantile=self.quantile, momentum=self.momentum)


@final
@dataclass(frozen=True)
class Gating:
    """Which gates there are. true takes a gate's defaults; a "running" class gate follows the shares it sees."""

    dimension: bool = False
    snr: bool | Snr = False
    mass_power: float = 1.0
    share: bool | Literal["running"] | Share = False

    def build(self) -> Gates:
        """The gates."""
        snr = self.snr if isinstance(self.snr, Snr) else Snr() if self.snr else None
        return Gates(dimension=self.dimension, snr=snr, mass_power=self.mass_power, share=self._share())

    def _share(self) -> Share | None:
        if isinstance(self.share, Share):
            return self.share
        if self.share == "running":
            return Share(slope=None, level=None)
        return Share() if self.share else None


@final
@dataclass(frozen=True)
class Parts:
    """The parts of the pipeline after the grouping; None: the default, which is no gate and the bound."""

    hinge: Curve | None = None
    threshold: Tau | None = None
    gates: Gating | None = None
    charging: Charging | None = None

    def gates_for(self, *traits: Trait) -> Gates:
        """The gates of a grouping that has several classes or groups, or not."""
        gates = self.gates or Gating()
        if gates.mass_power != 1.0 and "groups" not in traits:
            raise UsageError("mass_power weighs the groups of a class against each other, and here there is one group")
        if gates.share and "classes" not in traits:
            raise UsageError("share gates classes by their size, and here there is one class")
        return gates.build()

    def threshold_for(self, form: Form) -> Threshold:
        """τ of a form that has one."""
        if self.threshold is not None and form not in ("log", "softplus"):
            raise UsageError(f"threshold: the {form} form is nowhere silent, so it has no τ; use form log or softplus")
        return (self.threshold or Tau()).build()


def hinge(form: Form = "information", *, pool: Pool = "after_log", constants: Curve | None = None) -> Hinge:
    """The hinge of this name; constants it does not have are refused."""
    given = {name: value for name, value in asdict(constants or Curve()).items() if value is not None}
    for name in given:
        if name not in CONSTANTS[form]:
            others = " or ".join(other for other, names in CONSTANTS.items() if name in names)
            raise UsageError(f"hinge: the {form} form has no {name}; form {others} has")
    floor = given.get("floor", FLOOR)
    match form:
        case "information":
            return Information(pool=pool)
        case "linear":
            return Linear(pool=pool)
        case "log":
            return Log(pool=pool, floor=floor)
        case "softplus":
            sharpness, margin = given.get("sharpness", SHARPNESS), given.get("margin", 0.0)
            return Softplus(pool=pool, sharpness=sharpness, margin=margin, floor=floor)
