"""Which black boxes a white box is measured against.

An attacker who holds the client can do no worse than one who may only ask it. Where a black box does better all the
same, the client masks its gradients or the search is too weak: the white box's number understates what leaks.
"""

from collections.abc import Iterable

from splitveil.attacks import Box, Need, Threat
from splitveil.evaluation.play import twin_of
from splitveil.evaluation.suite import Trial


def uses_client(trial: Trial) -> bool:
    """Whether it looks inside the client, so that masked gradients could mislead it."""
    return trial.threat.box is Box.WHITE and Need.CLIENT in trial.attack.needs


def rivals(white: Trial, trials: Iterable[Trial]) -> list[Trial]:
    """Black boxes that know no more and saw as many releases: of the same attack, or of any where it uses the client.

    Guarantees: a black box that is a copy of this very trial is no rival.
    """
    if white.threat.box is not Box.WHITE:
        return []
    return [
        trial
        for trial in trials
        if trial.threat.box is Box.BLACK
        and _knows_no_more(trial.threat, white.threat)
        and twin_of(trial) != white
        and (uses_client(white) or trial.attack == white.attack)
    ]


def _knows_no_more(black: Threat, white: Threat) -> bool:
    """Of the same side and as many releases, with the label and the server's half only where the other has them."""
    alike = black.insider == white.insider and black.releases == white.releases
    return alike and black.label_known <= white.label_known and black.head_known <= white.head_known
