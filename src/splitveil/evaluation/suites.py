"""Fixed suites of attacks. A suite has no knobs: two clients that were put through it can be compared.

    cheap       about a minute a client on two cores: affine least squares and a short plain decoder
    standard    the whole ladder; label known; averaged releases; searches through the client; black boxes of n queries;
                the nearest own image; probes; what a classifier sees in the reconstructions
    full        everything: longer fits, more releases, learned priors, shadow clients with and without the head, a
                decoder that hears the server's answers

Decoders that may ask as they like run twice, as insider and as outsider. Searches, learned priors and what few queries
allow are an outsider's, the longest fit on a mean is an insider's.
Trials stand in the order in which they are worth having: a run that is cut short has the strongest ones.
"""

from collections.abc import Sequence
from dataclasses import replace

from splitveil.attacks import (
    Attack,
    Averaged,
    Box,
    DecoderAttack,
    DiffusionAttack,
    GeneratorAttack,
    Need,
    Objective,
    OptimizationAttack,
    Probe,
    Recognition,
    Retrieval,
    Ridge,
    Rung,
    ShadowAttack,
    Threat,
    Told,
)
from splitveil.check import UsageError, one_of
from splitveil.evaluation.suite import Inquiry, Suite, Trial
from splitveil.fitting import Plan

SHORT = Plan(steps=800, lr=4e-3, ema=0.99, check_every=100)
LONG = Plan(steps=5000, lr=3e-3, ema=0.998, check_every=100)
LONGER = Plan(steps=20_000, lr=3e-3, ema=0.999, check_every=250, patience=10)
SHORT_BATCH, LONG_BATCH = 64, 512
CHEAP_VICTIMS = 1000
MANY = 16  # releases of one input
QUERIES = (None, 4096, 1024, 128)  # that a black box answers; None: as many as one likes
HIDDEN = 256  # units of a probe that is not linear


def decoder(rung: Rung, *, objective: Objective = "mse", told: Told = "nothing", plan: Plan = LONG) -> DecoderAttack:
    """A rung of the ladder, as `standard` runs it."""
    return DecoderAttack(rung, objective=objective, told=told, batch=LONG_BATCH, plan=plan)


def both(attack: Attack) -> tuple[Trial, Trial]:
    """As an insider and as an outsider, granted what it needs beside."""
    needs, releases = attack.needs, attack.releases if isinstance(attack, Averaged) else 1
    threat = Threat(releases=releases, label_known=Need.LABEL in needs, head_known=Need.HEAD in needs)
    return Trial(attack, replace(threat, insider=True)), Trial(attack, threat)


def cheap() -> Suite:
    """About a minute a client on two cores."""
    short = DecoderAttack("conv", batch=SHORT_BATCH, plan=SHORT)
    trials = (
        Trial(Ridge(), Threat()),
        Trial(short, Threat()),
        Trial(Averaged(Ridge(), MANY), Threat(releases=MANY)),
        Trial(Ridge(), Threat(insider=True)),
    )
    return Suite("cheap", trials, CHEAP_VICTIMS)


def standard() -> Suite:
    """The whole ladder. No knobs."""
    residual = decoder("residual")
    trials = (
        *both(residual),
        *both(decoder("unet")),
        *both(Averaged(residual, MANY)),
        *reversed(both(Ridge())),
        *both(decoder("conv")),
        *both(decoder("residual", told="label")),
        *both(decoder("residual", objective="ssim")),
        Trial(OptimizationAttack(prior="gaussian"), Threat()),
        Trial(OptimizationAttack(prior="tv"), Threat()),
        *(Trial(residual, Threat(Box.BLACK, queries=n)) for n in QUERIES),
        *(Trial(Ridge(), Threat(Box.BLACK, queries=n)) for n in QUERIES if n),  # where few mislead a decoder
        Trial(Retrieval(), Threat()),
    )
    probes = (Inquiry(Probe(), Threat()), Inquiry(Probe(hidden=HIDDEN), Threat()))
    return Suite("standard", trials, inquiries=probes, recognition=Recognition())


def full() -> Suite:
    """Everything there is. Hours on a CPU; in pieces with a time budget."""
    residual, unet = decoder("residual"), decoder("unet")
    more = (
        *both(decoder("unet", plan=LONGER)),
        Trial(Averaged(decoder("residual", plan=LONGER), 64), Threat(releases=64, insider=True)),
        Trial(OptimizationAttack(prior="gaussian", start="decoder"), Threat()),
        Trial(DiffusionAttack(), Threat()),
        Trial(DiffusionAttack(start="decoder"), Threat()),
        Trial(GeneratorAttack(mode="decoder"), Threat()),
        Trial(GeneratorAttack(mode="latent"), Threat()),
        Trial(OptimizationAttack(prior="deep-image-prior"), Threat()),
        *both(Averaged(unet, MANY)),
        *both(Averaged(residual, 64)),
        *both(Averaged(residual, 4)),
        Trial(OptimizationAttack(prior="gaussian", start="decoder"), Threat(releases=MANY)),  # takes them all at once
        Trial(DiffusionAttack(), Threat(releases=MANY)),
        *(Trial(Averaged(Ridge(), t), Threat(releases=t)) for t in (4, MANY, 64)),
        Trial(ShadowAttack(head=True), Threat(Box.QUERY_FREE, head_known=True)),
        Trial(ShadowAttack(), Threat(Box.QUERY_FREE)),
        *both(decoder("residual", told="logits")),
        *both(decoder("residual", objective="lpips")),
        *both(decoder("unet", told="label")),
        Trial(unet, Threat(Box.BLACK, queries=4096)),
        Trial(Retrieval(), Threat(insider=True)),
        Trial(Retrieval(k=8), Threat(insider=True)),
    )
    usual = standard()
    probes = (Inquiry(Probe(), Threat(insider=True)), Inquiry(Probe(hidden=HIDDEN), Threat(insider=True)))
    return Suite("full", usual.trials + more, inquiries=usual.inquiries + probes, recognition=usual.recognition)


def releases(counts: Sequence[int], *, is_short: bool) -> Suite:
    """Least squares and a decoder on the mean of each number of releases of one input."""
    painter = DecoderAttack("conv", batch=SHORT_BATCH, plan=SHORT) if is_short else decoder("residual")
    trials = [
        Trial(attack if count == 1 else Averaged(attack, count), Threat(releases=count))
        for count in counts
        for attack in (Ridge(), painter)
    ]
    return Suite("releases", tuple(trials), CHEAP_VICTIMS if is_short else None)


def attribute_probes(name: str, classes: Sequence[int], *, n_classes: int) -> tuple[Inquiry, Inquiry]:
    """Whether the class is among these, asked by an outsider with a linear probe and one with a hidden layer.

    >>> [each.name for each in attribute_probes("animal", (2, 3), n_classes=10)]
    ['animal-probe-linear (white-box outsider)', 'animal-probe-mlp (white-box outsider)']
    """
    strange = [number for number in classes if not 0 <= number < n_classes]
    if strange:
        raise UsageError(f"attribute {name!r}: there is no class {strange[0]}; classes are 0 to {n_classes - 1}")
    if len(set(classes)) in (0, n_classes):
        raise UsageError(f"attribute {name!r} holds for all classes or none, so there is nothing to read; name some")
    groups = tuple(int(number in classes) for number in range(n_classes))
    linear = Probe(groups=groups, attribute=name)
    return Inquiry(linear, Threat()), Inquiry(replace(linear, hidden=HIDDEN), Threat())


SUITES = {"cheap": cheap, "standard": standard, "full": full}


def suite_named(name: str) -> Suite:
    """The suite of that name."""
    return SUITES[one_of("suite", name, tuple(SUITES))]()
