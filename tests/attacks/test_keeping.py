"""What was learned of images alone is learned once, whoever is attacked with it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from splitveil import fitting
from splitveil.attacks import DiffusionAttack, GeneratorAttack, Knowledge, Threat, grant, keeping, oracle_of
from splitveil.attacks.base import REVISION, Course
from splitveil.evaluation import Roles, Suite, Trial, evaluate
from splitveil.fitting import Fitted, Plan
from worlds.linear_gaussian import LinearGaussian, world

WORLD, OTHER = world(), world(features=12, noise_std=0.3, seed=1)
PLAN = Plan(steps=8, lr=2e-3, ema=0.5, check_every=2, warmup=1)
DENOISER = DiffusionAttack(width=8, batch=16, plan=PLAN, steps=2, samples=1, n_tuned=4)
GENERATOR = GeneratorAttack(latent=4, width=4, batch=8, rounds=1, plan=PLAN, steps=2, restarts=1, n_tuned=4)
AUXILIARY, SELECTION = WORLD.part(60, 0, "auxiliary"), WORLD.part(20, 0, "selection")
every_prior = pytest.mark.parametrize("attack", [DENOISER, GENERATOR], ids=lambda attack: attack.name)


def held(this: LinearGaussian = WORLD, *, releases: int = 1, auxiliary=AUXILIARY, selection=SELECTION) -> Knowledge:
    oracle = oracle_of(this.client())
    return grant(Threat(releases=releases), oracle=oracle, auxiliary=auxiliary, selection=selection)


@pytest.fixture
def steps(monkeypatch) -> list[int]:
    """The steps of every fit, as they are done."""
    done: list[int] = []
    step = fitting._Run.step

    def counted(run, loss):
        done.append(run.step_count)
        step(run, loss)

    monkeypatch.setattr(fitting._Run, "step", counted)
    return done


@pytest.fixture
def priors(monkeypatch) -> list[Fitted]:
    """Every prior that an attack goes on with."""
    found: list[Fitted] = []
    for kind in (DiffusionAttack, GeneratorAttack):
        learn = kind.learn
        monkeypatch.setattr(kind, "learn", lambda *words, learn=learn: (found.append(learn(*words)), found[-1])[1])
    return found


@every_prior
def test_another_client_and_more_releases_find_the_same_prior(attack, tmp_path, steps, priors):
    attack.fit(held(), seed=0, state=tmp_path / "one.fit")
    assert len(steps) == PLAN.steps
    again = replace(attack, steps=3, n_tuned=5)  # what searches with it is no part of it
    again.fit(held(OTHER, releases=4), seed=0, state=tmp_path / "two.fit")
    assert len(steps) == PLAN.steps
    first, second = priors
    assert first.checks == second.checks
    assert (first.stopped, first.still_falling) == (second.stopped, second.still_falling)
    wanted, found = first.network.state_dict(), second.network.state_dict()
    assert wanted.keys() == found.keys()
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)
    assert not second.network.training
    assert len(list(tmp_path.glob("prior-*.fit"))) == 1


@every_prior
@pytest.mark.parametrize("change", ["seed", "plan", "width", "batch", "auxiliary", "one pixel", "more", "selection"])
def test_whatever_it_depends_on_makes_another_prior(attack, change, tmp_path, steps):
    def learned(attack, known, selection=SELECTION, seed=0):
        attack.learn(known, selection.images(), Course(seed, state=tmp_path / "trial.fit"))
        return len(list(tmp_path.glob("prior-*.fit")))

    assert learned(attack, held()) == 1
    changed = AUXILIARY.pixels.clone()
    changed[30, 0, 0, 0] += 1
    other = {"auxiliary": WORLD.part(60, 1, "auxiliary"), "more": WORLD.part(61, 0, "auxiliary")}
    other["one pixel"] = replace(AUXILIARY, pixels=changed)
    settings = {"plan": {"plan": replace(PLAN, lr=1e-3)}, "width": {"width": 12}, "batch": {"batch": 9}}
    attack = replace(attack, **settings.get(change, {}))
    selection = WORLD.part(20, 1, "selection") if change == "selection" else SELECTION
    known = held(auxiliary=other.get(change, AUXILIARY))
    assert learned(attack, known, selection, seed=int(change == "seed")) == 2
    assert len(steps) == 2 * PLAN.steps


@pytest.mark.parametrize("settings", [{"latent": 5}, {"rounds": 2}, {"critic_lr": 1e-3}], ids=str)
def test_a_generator_s_own_settings_make_another_prior(settings, tmp_path, steps):
    for attack in (GENERATOR, replace(GENERATOR, **settings)):
        attack.learn(held(), SELECTION.images(), Course(0, state=tmp_path / "trial.fit"))
    assert len(steps) == 2 * PLAN.steps


def test_a_prior_that_is_learned_in_another_way_is_another(tmp_path, steps, monkeypatch):
    for revision in (REVISION, REVISION + 1):
        monkeypatch.setattr(keeping, "REVISION", revision)
        DENOISER.learn(held(), SELECTION.images(), Course(0, state=tmp_path / "trial.fit"))
    assert len(steps) == 2 * PLAN.steps


@every_prior
def test_an_unfinished_prior_is_nobody_else_s(attack, tmp_path, steps, monkeypatch):
    monkeypatch.setattr(fitting, "SAVE_EVERY", 0.0)

    def stop(check: fitting.Check) -> None:
        if check.step == 4:
            raise KeyboardInterrupt

    def learned(trial: str, watch=None) -> Fitted:
        return attack.learn(held(), SELECTION.images(), Course(0, watch, tmp_path / trial))

    with pytest.raises(KeyboardInterrupt):
        learned("one.fit", stop)
    assert not list(tmp_path.glob("prior-*"))
    resumed = learned("one.fit")
    assert steps == list(range(PLAN.steps))
    whole = attack.learn(held(), SELECTION.images(), Course(0))
    assert [check.score for check in resumed.checks] == [check.score for check in whole.checks]


def test_a_damaged_prior_is_learned_anew(tmp_path, steps):
    def learned() -> Fitted:
        return DENOISER.learn(held(), SELECTION.images(), Course(0, state=tmp_path / "trial.fit"))

    first = learned()
    (place,) = tmp_path.glob("prior-*")
    place.write_bytes(place.read_bytes()[:-1])
    again = learned()
    assert len(steps) == 2 * PLAN.steps
    assert again.best.score == first.best.score
    learned()
    assert len(steps) == 2 * PLAN.steps


@every_prior
def test_without_a_place_nothing_is_shared(attack, tmp_path, steps, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        attack.learn(held(), SELECTION.images(), Course(0))
    assert len(steps) == 2 * PLAN.steps
    assert not list(Path().iterdir())


@every_prior
def test_the_trials_of_an_evaluation_share_it(attack, tmp_path, steps):
    roles = Roles("world", "00", AUXILIARY, SELECTION, WORLD.part(6, 0, "victims"), None, 2)
    suite = Suite("two", (Trial(attack, Threat()), Trial(attack, Threat(releases=4))))
    evaluate(WORLD.client(), suite, roles, out=tmp_path)
    assert len(steps) == PLAN.steps
