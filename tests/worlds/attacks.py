"""Every attack there is, at budgets of a second: few steps make a poor attack, and still an attack."""

from dataclasses import replace

from splitveil.attacks import (
    Attack,
    Averaged,
    Box,
    DecoderAttack,
    DiffusionAttack,
    GeneratorAttack,
    Need,
    OptimizationAttack,
    Retrieval,
    Ridge,
    ShadowAttack,
    Threat,
)
from splitveil.evaluation.suite import Trial
from splitveil.evaluation.suites import full
from splitveil.fitting import Plan

QUICK = Plan(steps=40, lr=5e-3, warmup=5, ema=0.9, check_every=20)
CONV = DecoderAttack("conv", batch=32, plan=QUICK)
SEARCH = OptimizationAttack(steps=30, n_tuned=8, width=4, decoder=CONV)
DUEL = GeneratorAttack(
    latent=8, width=4, batch=16, plan=replace(QUICK, steps=20), critic_lr=5e-3, steps=15, restarts=2, n_tuned=8
)
SAMPLES = DiffusionAttack(width=8, batch=32, plan=QUICK, steps=8, samples=2, n_tuned=8, decoder=CONV)
ATTACKS: list[Attack] = [
    Ridge(),
    CONV,
    replace(CONV, rung="residual"),
    replace(CONV, rung="unet"),
    replace(CONV, told="label"),
    replace(CONV, told="logits"),
    replace(CONV, objective="ssim"),
    replace(CONV, objective="lpips", batch=16),
    Averaged(Ridge(), releases=4),
    Averaged(CONV, releases=4),
    Retrieval(k=8),
    ShadowAttack(batch=32, plan=QUICK, decoder=CONV),
    ShadowAttack(head=True, batch=32, plan=QUICK, decoder=CONV),
    SEARCH,
    replace(SEARCH, prior="gaussian", start="mean"),
    replace(SEARCH, prior="deep-image-prior"),
    replace(SEARCH, prior="gaussian", start="decoder"),
    DUEL,
    replace(DUEL, mode="decoder", rung="conv", batch=32, plan=QUICK),
    SAMPLES,
    replace(SAMPLES, start="decoder"),
]

BRIEF = replace(QUICK, steps=30, check_every=15, lr=1e-2)


def enough(attack: Attack) -> Threat:
    """The least that this attack can do with."""
    needs = attack.needs
    box = Box.WHITE if Need.CLIENT in needs else Box.QUERY_FREE if Need.FAMILY in needs else Box.BLACK
    releases = 4 if Need.RELEASES in needs else 1
    return Threat(box, releases=releases, label_known=Need.LABEL in needs, head_known=Need.HEAD in needs)


def brief(attack: Attack) -> Attack:
    """The same attack with next to no budget."""
    match attack:
        case Averaged():
            return replace(attack, attack=brief(attack.attack))
        case DecoderAttack():
            return replace(attack, batch=16, plan=BRIEF)
        case OptimizationAttack():
            return replace(attack, steps=15, n_tuned=8, width=4, decoder=brief(attack.decoder))
        case GeneratorAttack():
            few = {"steps": 5, "restarts": 2, "n_tuned": 4}
            return replace(attack, latent=8, width=4, batch=16, plan=BRIEF, critic_lr=5e-3, **few)
        case DiffusionAttack():
            few = {"steps": 4, "samples": 2, "n_tuned": 4}
            return replace(attack, width=8, batch=16, plan=BRIEF, decoder=brief(attack.decoder), **few)
        case ShadowAttack():
            return replace(attack, batch=16, plan=BRIEF, decoder=brief(attack.decoder))
        case _:
            return attack


def brief_trials() -> list[Trial]:
    """Every attack of `full`, each once for each number of releases that it is played with there.

    Who holds private images, or puts fewer questions, runs the same attack on other images or on fewer.
    """
    trials = [(brief(trial.attack), trial.threat.releases) for trial in full().trials]
    return [Trial(attack, replace(enough(attack), releases=count)) for attack, count in dict.fromkeys(trials)]
