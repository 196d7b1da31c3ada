"""When a number should not be believed: the preflight flags, each a small pure function.

A flag never changes a number. It is shown beside it, and the headline of a flagged attack is `unreliable`; so is one
that an unfinished attack could yet pass. A check that could not be made (one seed, no bound, no undefended client) is
listed as not checked rather than passed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from splitveil.attacks import Health
from splitveil.bounds import Bound
from splitveil.metrics import Interval

OVERFIT = 0.5  # an error on the fitted images below this share of the selection error is memory, not inversion
FAILS = 0.2  # an attack that leaks less than this from an undefended client does not work at all
UNSTABLE = 0.1  # spread of the mean MSE over attack seeds, relative to their mean
CATCHES_UP = 1.5  # an unfinished attack with at most so many times the headline's error could yet pass it
UNDERSTATES = (
    "its number understates what leaks (masked gradients, or too weak a search): "
    "go by the black box, and give this attack more steps or a decoder's picture to start from"
)


class FlagName(StrEnum):
    """The eight ways a number can mislead."""

    STILL_FALLING = "loss still falling"
    OVERFITTED = "train ≪ validation"
    NO_BETTER_THAN_PRIOR = "no better than the prior"
    FAILS_UNDEFENDED = "fails on the undefended model"
    BLACK_BEATS_WHITE = "black box beats white box"
    UNSTABLE = "unstable across attack seeds"
    NO_AVERAGING = "random mechanism but no averaging tried"
    BELOW_BOUND = "measured error below a proved bound"


@dataclass(frozen=True)
class Flag:
    """One reason not to believe a number."""

    name: FlagName
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def still_falling(health: Health) -> Flag | None:
    """The budget ended before the selection error was flat: a longer attack would do better."""
    if not health.still_falling:
        return None
    return Flag(FlagName.STILL_FALLING, f"after {health.steps} steps; give the attack more, or play a larger suite")


def judge_cut(health: Health) -> Flag | None:
    """Who looks at reconstructions was trained too briefly: a better judge would see more in them."""
    if not health.still_falling:
        return None
    return Flag(FlagName.STILL_FALLING, f"of the judge, after {health.steps} steps; give it more, it would see more")


def could_pass(headline: Interval, unfinished: Mapping[str, Interval]) -> Flag | None:
    """Attacks beside the headline (by name) whose loss still fell: the lowest error may not be that of the headline."""
    near = [name for name, mse in unfinished.items() if mse.mean <= CATCHES_UP * headline.mean]
    if not near:
        return None
    name = min(near, key=lambda each: unfinished[each].mean)
    more = f" and {len(near) - 1} more" if len(near) > 1 else ""
    told = f"of {name}{more}, not the headline: its mse {unfinished[name].mean:.4g} could yet fall below"
    return Flag(FlagName.STILL_FALLING, f"{told} {headline.mean:.4g}; train it longer")


def overfitted(health: Health) -> Flag | None:
    """The attack remembers its own images far better than it inverts others."""
    train, selection = health.train_mse, health.selection_mse
    if train is None or selection is None or train >= OVERFIT * selection:
        return None
    return Flag(FlagName.OVERFITTED, f"mse {train:.4g} on fitted images, {selection:.4g} on selection images")


def no_better_than_prior(mse: Interval, prior_mse: float) -> Flag | None:
    """The attack cannot be told from answering with the mean auxiliary image."""
    if mse.high < prior_mse:
        return None
    return Flag(FlagName.NO_BETTER_THAN_PRIOR, f"mse {mse}, the mean image has {prior_mse:.4g}")


def fails_undefended(undefended_leak: float | None) -> Flag | None:
    """The same attack learns next to nothing from an undefended client, so its failure here says nothing."""
    if undefended_leak is None or undefended_leak >= FAILS:
        return None
    return Flag(FlagName.FAILS_UNDEFENDED, f"leak {undefended_leak:.2f} there")


def black_beats_white(white: Interval, blacks: Mapping[str, Interval]) -> Flag | None:
    """A black box (by name) that knows less does better: the white box's number understates what leaks."""
    name = min(blacks, key=lambda each: blacks[each].high, default=None)
    if name is None or blacks[name].high >= white.low:
        return None
    told = f"{name} knows less and has mse {blacks[name]}, this attack {white}; {UNDERSTATES}"
    return Flag(FlagName.BLACK_BEATS_WHITE, told)


def unstable(mean_mse_by_seed: Sequence[float]) -> Flag | None:
    """Attack seeds disagree: the best of more seeds would do better."""
    if len(mean_mse_by_seed) < 2:
        return None
    spread = (max(mean_mse_by_seed) - min(mean_mse_by_seed)) * len(mean_mse_by_seed) / sum(mean_mse_by_seed)
    if spread <= UNSTABLE:
        return None
    return Flag(FlagName.UNSTABLE, f"mse from {min(mean_mse_by_seed):.4g} to {max(mean_mse_by_seed):.4g}")


def no_averaging(is_random: bool, releases_tried: Sequence[int]) -> Flag | None:
    """Noise that is drawn anew can be averaged away, and nobody tried."""
    if not is_random or any(releases > 1 for releases in releases_tried):
        return None
    return Flag(FlagName.NO_AVERAGING, "each attack saw one release of each input")


def below_bound(mse: Interval, bounds: Sequence[Bound], *, releases: int = 1, label_known: bool = False) -> Flag | None:
    """The attack beats what no attack can: the bound, its assumptions or the measurement is wrong."""
    proved = [bound for bound in bounds if judges(bound, releases, label_known=label_known)]
    best = max(proved, key=lambda bound: bound.safe, default=None)
    if best is None or mse.high >= best.safe:
        return None
    return Flag(FlagName.BELOW_BOUND, f"mse {mse}, {best.statement()} ({best.name})")


def judges(bound: Bound, releases: int, *, label_known: bool = False) -> bool:
    """Whether an attack that saw so many releases can contradict the bound: what holds for more holds for fewer.

    One that knows the label contradicts only what holds against attackers who do.

    Guarantees: a floor of zero judges nobody.
    """
    answers = bound.label_known or not label_known
    return answers and bound.is_about_attacks and bound.releases >= releases and bound.safe > 0
