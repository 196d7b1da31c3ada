"""What every attack must do, over every attack there is."""

from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import nn

from splitveil.attacks import (
    Attack,
    Box,
    DecoderAttack,
    Health,
    Inverter,
    Knowledge,
    Need,
    Seen,
    Threat,
    grant,
    oracle_of,
)
from splitveil.check import UsageError
from splitveil.data import Part
from splitveil.evaluation import Roles, Suite, Trial, evaluate
from splitveil.fitting import Check, Plan
from splitveil.metrics import mse
from splitveil.randomness import SeededSource
from worlds.attacks import ATTACKS, brief_trials, enough
from worlds.linear_gaussian import world
from worlds.tripwire import Trespass, tripwire  # noqa: F401  # a fixture

asking = [attack for attack in ATTACKS if Need.FAMILY not in attack.needs]  # a shadow of fixed weights learns nothing
every_attack = pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)

UNDEFENDED = world(side=12, features=36, noise_std=0.0)
AUXILIARY, SELECTION = UNDEFENDED.part(200, 0, "auxiliary"), UNDEFENDED.part(40, 0, "selection")
VICTIMS = UNDEFENDED.part(30, 0, "victims")
HEAD = nn.Linear(36, 2)


def known(threat: Threat) -> Knowledge:
    oracle = oracle_of(UNDEFENDED.client())
    return grant(threat, oracle=oracle, auxiliary=AUXILIARY, selection=SELECTION, n_classes=2, head=HEAD)


def seen(attack: Attack, part: Part = VICTIMS) -> Seen:
    threat = enough(attack)
    z_sent = oracle_of(UNDEFENDED.client()).release(
        part.images(), source=SeededSource(0, "seen"), releases=threat.releases
    )
    return Seen(z_sent, part.labels if threat.label_known else None)


@cache
def watched(attack: Attack) -> tuple[Inverter, tuple[Check, ...]]:
    """The attack, fitted without a break, and all it told meanwhile."""
    told: list[Check] = []
    inverter = attack.fit(known(enough(attack)), seed=0, watch=told.append)
    return inverter, tuple(told)


def fitted(attack: Attack) -> Inverter:
    return watched(attack)[0]


def test_every_attack_has_a_name_of_its_own():
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)


def test_every_class_of_the_fullest_suite_is_here():
    assert {type(trial.attack) for trial in brief_trials()} == {type(attack) for attack in ATTACKS}


@every_attack
def test_it_hears_all_releases_or_the_first_alone_as_it_says(attack):
    z_sent = oracle_of(UNDEFENDED.client()).release(VICTIMS.images(), source=SeededSource(0), releases=4)
    other = torch.cat([z_sent[:1], z_sent[1:].flip(1)])
    one, two = (fitted(attack)(Seen(each, VICTIMS.labels)) for each in (z_sent, other))
    assert torch.equal(one, two) is not attack.hears_all


@every_attack
def test_releases_that_it_does_not_hear_are_refused(attack):
    threat = replace(enough(attack), releases=4)
    if attack.hears_all:
        assert Trial(attack, threat).threat.releases == 4
    else:
        with pytest.raises(UsageError, match="hears one release of an input, got a threat with 4; wrap it in Averaged"):
            Trial(attack, threat)


@every_attack
def test_it_refuses_knowledge_that_lacks_what_it_needs(attack):
    full = enough(attack)
    poorer = {
        Need.PAIRS: replace(full, box=Box.QUERY_FREE),
        Need.CLIENT: replace(full, box=Box.BLACK),
        Need.LABEL: replace(full, label_known=False),
        Need.RELEASES: replace(full, releases=1),
        Need.FAMILY: replace(full, box=Box.BLACK),
        Need.HEAD: replace(full, head_known=False),
    }
    assert attack.needs
    for need in attack.needs:
        with pytest.raises(UsageError, match=f"needs .*{need}"):
            attack.fit(known(poorer[need]), seed=0)


@pytest.mark.parametrize("attack", asking, ids=lambda attack: attack.name)
def test_it_beats_the_mean_image_on_an_undefended_client(attack):
    x = VICTIMS.images()
    prior = mse(x, AUXILIARY.images().mean(0, keepdim=True).expand_as(x)).mean()
    x_hat = fitted(attack)(seen(attack))
    assert x_hat.shape == x.shape
    assert 0 <= x_hat.min() <= x_hat.max() <= 1
    assert mse(x, x_hat).mean() < 0.9 * prior


@every_attack
def test_the_same_seed_gives_the_same_result(attack):
    torch.manual_seed(99)  # whatever the global generator says
    again = attack.fit(known(enough(attack)), seed=0)
    assert torch.equal(again(seen(attack)), fitted(attack)(seen(attack)))
    assert again.health == fitted(attack).health


@every_attack
def test_fitting_leaves_the_global_generator_alone(attack):
    quick = replace(attack, plan=Plan(steps=1)) if isinstance(attack, DecoderAttack) else attack
    before = torch.random.get_rng_state()
    quick.fit(known(enough(quick)), seed=0)
    assert torch.equal(torch.random.get_rng_state(), before)


@every_attack
def test_an_answer_does_not_depend_on_the_other_victims(attack):
    whole = seen(attack)
    one = Seen(whole.z_sent[:, 3:4], None if whole.y is None else whole.y[3:4])
    torch.testing.assert_close(fitted(attack)(one), fitted(attack)(whole)[3:4], atol=1e-5, rtol=0)


@every_attack
def test_it_is_handed_the_client_only_if_it_says_so(attack, monkeypatch):
    handed = []

    class Enough(Exception):
        pass

    def look(self, known, course):
        handed.append(known.client)
        raise Enough

    monkeypatch.setattr(type(attack), "_fit", look)
    with pytest.raises(Enough):
        attack.fit(replace(known(enough(attack)), client=UNDEFENDED.client()), seed=0)
    assert (handed[0] is not None) == (Need.CLIENT in attack.needs)


class Stop(Exception):
    """Whoever watches has seen enough."""


@every_attack
def test_stopped_at_its_first_check_and_at_its_last_it_ends_where_it_would_have(attack, tmp_path):
    whole, told = watched(attack)
    assert told, "every fit says how it goes"
    for last in (told[0], told[-1]):

        def stop(check, last=last):
            if replace(check, seconds=last.seconds) == last:
                raise Stop

        with pytest.raises(Stop):
            attack.fit(known(enough(attack)), seed=0, watch=stop, state=tmp_path / "fit")
    rest: list[Check] = []
    again = attack.fit(known(enough(attack)), seed=0, watch=rest.append, state=tmp_path / "fit")
    assert len(rest) < len(told), "what was finished is not repeated"
    assert torch.equal(again(seen(attack)), whole(seen(attack)))
    assert again.health == whole.health


@every_attack
def test_it_never_sees_a_victim_s_image(attack, tripwire):  # noqa: F811
    quick = replace(attack, plan=Plan(steps=2)) if isinstance(attack, DecoderAttack) else attack
    noisy = replace(UNDEFENDED, noise_std=0.1).client()
    evaluate(noisy, Suite("one", (Trial(quick, enough(quick)),)), roles(tripwire), keep_samples=True, head=HEAD)


def roles(wire) -> Roles:
    return Roles("world", "00", AUXILIARY, SELECTION, wire(VICTIMS), None, 2)


@pytest.mark.parametrize("when", ["fit", "invert"])
def test_an_attack_that_reads_a_victim_is_caught(when, tripwire):  # noqa: F811
    scene = roles(tripwire)
    cheat = Cheat(scene.victims, when)
    with pytest.raises(Trespass, match="on a victim's image"):
        evaluate(UNDEFENDED.client(), Suite("cheat", (Trial(cheat, Threat()),)), scene)


@dataclass(frozen=True)
class Cheat(Attack):
    """Holds what it must not hold."""

    victims: Part
    when: str

    @property
    def name(self) -> str:
        return "cheat"

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset()

    def __repr__(self) -> str:
        return "Cheat()"

    def __hash__(self) -> int:
        return 0

    def _fit(self, known, course) -> Inverter:
        if self.when == "fit":
            self.victims.images()
        return CheatInverter(self.victims)


class CheatInverter(Inverter):
    def __init__(self, victims: Part) -> None:
        self.victims = victims

    @property
    def health(self) -> Health:
        return Health()

    def __call__(self, seen: Seen) -> torch.Tensor:
        return self.victims.images()
