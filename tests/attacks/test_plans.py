"""What a plan says of precision and memory order reaches the fit; what it leaves open is as suits."""

from dataclasses import replace

import pytest

from splitveil.attacks import Attack, Knowledge, decoder, diffusion, generator, grant, oracle_of, recognition, shadow
from splitveil.attacks.recognition import Recognition
from splitveil.fitting import Plan
from worlds.attacks import CONV, DUEL, QUICK, SAMPLES, enough
from worlds.linear_gaussian import world

WORLD = world()
SHADOW = shadow.ShadowAttack(batch=32, plan=QUICK, decoder=CONV)
FED = replace(DUEL, mode="decoder", rung="conv", batch=32, plan=QUICK)
FITS = {"decoder": (CONV, decoder), "latent": (DUEL, generator), "fed": (FED, generator), "shadow": (SHADOW, shadow)}
FITS["diffusion"] = (SAMPLES, diffusion)


class HandedOver(Exception):
    """A plan that a fit was given."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan


def _refuse(*_: object, plan: Plan, **__: object) -> None:
    raise HandedOver(plan)


def _held(attack: Attack) -> Knowledge:
    parts = {role: WORLD.part(64, 0, role) for role in ("auxiliary", "selection")}
    return grant(enough(attack), oracle=oracle_of(WORLD.client()), n_classes=2, **parts)


@pytest.mark.parametrize("said", [False, True])
@pytest.mark.parametrize("name", FITS)
def test_an_attack_heeds_what_its_plan_says(name: str, said: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    attack, module = FITS[name]
    plan = replace(attack.plan, bfloat16=said, channels_last=said)
    monkeypatch.setattr(module, "fit", _refuse)
    with pytest.raises(HandedOver) as handed:
        replace(attack, plan=plan).fit(_held(attack), seed=0)
    assert (handed.value.plan.bfloat16, handed.value.plan.channels_last) == (said, said)


@pytest.mark.parametrize("said", [False, True])
def test_so_does_a_recognizer(said: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    own = WORLD.part(32, 0, "own")
    monkeypatch.setattr(recognition, "fit", _refuse)
    with pytest.raises(HandedOver) as handed:
        Recognition(plan=replace(QUICK, bfloat16=said, channels_last=said)).fit(own, own, n_classes=2)
    assert (handed.value.plan.bfloat16, handed.value.plan.channels_last) == (said, said)
