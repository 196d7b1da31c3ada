"""From guesses and from what the judges saw to the inferences of a result.

score = share of victims guessed right        chance = the best constant guess, or photos drawn at random
"""

import torch
from jaxtyping import Int
from torch import Tensor

from splitveil.attacks import Health, Threat, chance_of_finding
from splitveil.evaluation.flags import Flag, judge_cut, still_falling
from splitveil.evaluation.gauge import NOTHING
from splitveil.evaluation.judges import RANKS, attackers_images, gallery_of
from splitveil.evaluation.result import InferenceResult
from splitveil.evaluation.roles import Roles
from splitveil.evaluation.suite import Inquiry
from splitveil.evaluation.trial import Outcome, Scene
from splitveil.metrics import Interval, interval
from splitveil.types import Labels

RECOGNITION = "classifier-on-reconstruction"


def asked(inquiry: Inquiry, outcomes: tuple[Outcome, ...], roles: Roles, y: Labels) -> InferenceResult:
    """What an inquiry found, over all its seeds."""
    own = attackers_images(roles, inquiry.threat.insider).labels
    peaks = [outcome.peak_memory_mb for outcome in outcomes if outcome.peak_memory_mb is not None]
    falling = [flag for outcome in outcomes if (flag := still_falling(outcome.health)) is not None]
    return InferenceResult(
        name=inquiry.attack.name,
        knowledge=inquiry.threat.name,
        attack=None,
        score=interval(torch.stack([outcome.scores["right"] for outcome in outcomes])),
        chance=_constant(inquiry.attack.truth(own[own >= 0]), inquiry.attack.truth(y)),
        ceiling=None,
        seconds=sum(outcome.seconds for outcome in outcomes),
        peak_memory_mb=max(peaks) if peaks else None,
        flags=tuple(falling[:1]),
        peak_is_at_most=any(outcome.peak_is_at_most for outcome in outcomes),
    )


def judged(
    attack: str, threat: Threat, outcomes: tuple[Outcome, ...], scene: Scene, y: Labels
) -> list[InferenceResult]:
    """What the judges saw in the reconstructions of one attack; flagged where a judge was cut short."""
    roles, judges = scene.roles, scene.judges
    if judges is None:
        return []
    chances: dict[str, float] = {}
    seen = outcomes[0].scores
    if "recognized" in seen:
        own = attackers_images(roles, threat.insider).labels
        chances["recognized"] = _constant(own[own >= 0], y)
    if "found1" in seen:
        photos = gallery_of(roles).labels
        chances |= {f"found{k}": chance_of_finding(photos, y, k=k) for k in RANKS}
    judging = sum((outcome.judging for outcome in outcomes), NOTHING)
    names = {"recognized": RECOGNITION} | {f"found{k}": f"re-identification R@{k}" for k in RANKS}
    return [
        InferenceResult(
            name=names[key],
            knowledge=threat.name,
            attack=attack,
            score=_over(outcomes, key),
            chance=chance,
            ceiling=_over(outcomes, f"{key}_original"),
            seconds=judging.seconds / len(outcomes),
            peak_memory_mb=judging.peak_memory_mb,
            flags=_cut(judges.health(insider=threat.insider or key != "recognized")),  # photos: the insider's
            peak_is_at_most=judging.is_at_most,
        )
        for key, chance in chances.items()
    ]


def _cut(health: Health) -> tuple[Flag, ...]:
    flag = judge_cut(health)
    return () if flag is None else (flag,)


def _over(outcomes: tuple[Outcome, ...], key: str) -> Interval:
    return interval(torch.stack([outcome.scores[key] for outcome in outcomes]))


def _constant(own: Int[Tensor, " own"], truth: Labels) -> float:
    """How often the attacker's most common answer is right."""
    return (truth == torch.bincount(own).argmax()).float().mean().item()
