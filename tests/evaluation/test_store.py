"""A stored trial is taken only for what it was: the same client, images, attack and way of answering."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from splitveil.attacks import Health, Probe, Ridge, Threat
from splitveil.attacks.base import REVISION
from splitveil.evaluation import Inquiry, Roles, Suite, Trial, Update, evaluate
from splitveil.evaluation.store import Store
from splitveil.evaluation.trial import Outcome
from splitveil.randomness import SeededSource
from worlds.evaluations import CONV, ROLES, WORLD

RIDGE = Suite("ridge", (Trial(Ridge(), Threat()),))


def rerun(out: Path, client: object = None, suite: Suite = RIDGE, roles: Roles = ROLES, **words: object) -> bool:
    """Whether the trial had to be run again."""
    updates: list[Update] = []
    evaluate(client or WORLD.client(), suite, roles, out=out, progress=updates.append, **words)
    return not updates[-1].was_stored


def function(noise_std: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """A client that is only a function, with noise of its own."""
    client, source = replace(WORLD, noise_std=noise_std).client(), SeededSource(0, "own noise")
    return lambda x: client(x, source=source)


def test_a_random_function_is_not_taken_for_another_of_the_same_shape(tmp_path):
    loud = evaluate(function(2.0), RIDGE, ROLES, out=tmp_path)
    quiet = evaluate(function(0.02), RIDGE, ROLES, out=tmp_path)
    assert quiet.best.mse.high < loud.best.mse.low
    assert rerun(tmp_path, client=function(0.02))


def test_a_name_stands_for_a_random_function(tmp_path):
    assert rerun(tmp_path, client=function(0.2), client_name="one")
    assert not rerun(tmp_path, client=function(0.2), client_name="one")
    assert rerun(tmp_path, client=function(0.2), client_name="two")
    assert rerun(tmp_path, client=function(0.2))


def test_a_name_does_not_stand_for_answers_that_can_be_compared(tmp_path):
    assert rerun(tmp_path, client=function(0.0), client_name="one")
    assert not rerun(tmp_path, client=function(0.0), client_name="one")
    assert rerun(tmp_path, client=lambda x: 2 * function(0.0)(x), client_name="one")


def test_attacks_that_answer_in_another_way_are_run_again(tmp_path, monkeypatch):
    assert rerun(tmp_path)
    assert not rerun(tmp_path)
    monkeypatch.setattr("splitveil.evaluation.store.REVISION", REVISION + 1)
    assert rerun(tmp_path)


def test_a_trial_without_the_pictures_that_are_asked_for_is_run_again(tmp_path):
    place = tmp_path / "attacks" / f"{RIDGE.trials[0].slug}-seed0.png"
    asked = replace(RIDGE, inquiries=(Inquiry(Probe(plan=CONV.plan), Threat()),))
    assert rerun(tmp_path, suite=asked, keep_samples=False)
    assert not rerun(tmp_path, suite=asked)  # who asks for nothing takes what is there
    assert not place.exists()
    assert not rerun(tmp_path, suite=asked, keep_samples=True)  # the inquiry, which has none
    assert place.exists()
    assert not rerun(tmp_path, keep_samples=True)
    assert not rerun(tmp_path, keep_samples=False)


def test_a_picture_goes_with_its_trial(tmp_path):
    assert rerun(tmp_path)
    assert rerun(tmp_path, client=replace(WORLD, noise_std=0.3).client(), keep_samples=False)
    assert not list(tmp_path.rglob("*.png"))


def test_images_of_people_are_not_attacked_again_for_pictures(tmp_path):
    people = replace(ROLES, people=True)
    assert rerun(tmp_path, roles=people)
    assert not rerun(tmp_path, roles=people)


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_other_settings_of_the_same_name_are_another_trial(is_on_disk, tmp_path):
    store = Store(tmp_path if is_on_disk else None, client="one", roles=ROLES, n_victims=2)
    trial = Trial(CONV, Threat())
    store.put(trial, 0, Outcome({"mse": torch.ones(2)}, Health(), 0.0, None, None))
    other = Trial(replace(CONV, batch=16), Threat())
    assert other.slug == trial.slug
    assert store.has(trial, 0)
    assert store.get(trial, 0) is not None
    assert not store.has(other, 0)
    assert store.get(other, 0) is None
