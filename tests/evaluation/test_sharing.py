"""An evaluation played by several processes ends as one that was played by one."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from splitveil import pausing
from splitveil.attacks import Averaged, Box, Probe, Recognition, Ridge, Threat
from splitveil.check import RunError, UsageError
from splitveil.evaluation import (
    Claims,
    Inquiry,
    Roles,
    Suite,
    TimeUp,
    Trial,
    Update,
    evaluate,
    play,
    prepare,
    take_part,
)
from splitveil.fitting import Plan
from splitveil.randomness import SeededSource
from splitveil.writing import read_tensors
from worlds.evaluations import CONV, ROLES, WORLD, timeless

COPY = Trial(CONV, Threat(Box.BLACK))  # of the one before
SUITE = Suite(
    "tiny",
    (
        Trial(CONV, Threat(insider=True)),
        Trial(Ridge(), Threat()),
        Trial(CONV, Threat()),
        COPY,
        Trial(Averaged(Ridge(), 4), Threat(releases=4)),
    ),
    inquiries=(Inquiry(Probe(plan=Plan(steps=4, check_every=2)), Threat()),),
)


def played_by(out: Path, seeds: tuple[int, ...], then: Callable[[], object] = lambda: None) -> list[str]:
    """Take part, and say what was played; `then` happens after the first of it."""
    names: list[str] = []

    def watch(update: Update) -> None:
        if update.is_done:
            names.append(update.trial)
            if len(names) == 1:
                then()

    take_part(WORLD.client(), SUITE, ROLES, out=out, seeds=seeds, progress=watch)
    return names


def test_two_players_play_every_trial_once_and_the_result_is_the_same(tmp_path):
    alone = evaluate(WORLD.client(), SUITE, ROLES, seeds=(0, 1))
    other: list[str] = []

    def second() -> None:
        other.extend(played_by(tmp_path, (0,)))

    names = played_by(tmp_path, (0, 1), second)
    each = [trial.name for trial in (*SUITE.trials, *SUITE.inquiries) if trial is not COPY]
    assert other == each[1:]
    assert sorted(names + other) == sorted(2 * each)
    stored = []
    result = evaluate(
        WORLD.client(), SUITE, ROLES, seeds=(0, 1), out=tmp_path, progress=lambda u: stored.append(u.was_stored)
    )
    assert timeless(result) == timeless(alone)
    assert stored.count(False) == 2  # the copies


def test_what_is_claimed_is_left_alone_until_the_claims_are_forgotten(tmp_path):
    claims = Claims(tmp_path)
    assert claims(SUITE.trials[1], 0)
    assert not Claims(tmp_path)(SUITE.trials[1], 0)
    assert SUITE.trials[1].name not in played_by(tmp_path, (0,))
    assert played_by(tmp_path, (0,)) == []
    claims.clear()
    assert played_by(tmp_path, (0,)) == [SUITE.trials[1].name]
    claims.close()
    assert not (tmp_path / "claims").exists()


def test_a_trial_whose_player_died_is_played_by_whoever_sums_up(tmp_path):
    assert Claims(tmp_path)(SUITE.trials[0], 0)
    played_by(tmp_path, (0,))
    result = evaluate(WORLD.client(), SUITE, ROLES, out=tmp_path)
    assert timeless(result) == timeless(evaluate(WORLD.client(), SUITE, ROLES))


def test_players_share_a_random_function_by_its_name(tmp_path):
    client, suite = WORLD.client(), replace(SUITE, trials=SUITE.trials[1:2], inquiries=())
    source, updates = SeededSource(0, "own noise"), []

    def function(x):
        return client(x, source=source)

    for share in (prepare, take_part):
        with pytest.raises(UsageError, match=r"answers are random.*give a client_name"):
            share(function, suite, ROLES, out=tmp_path)
    take_part(function, suite, ROLES, out=tmp_path, client_name="mine")
    evaluate(function, suite, ROLES, out=tmp_path, client_name="mine", progress=updates.append)
    assert updates[-1].was_stored


def judged() -> tuple[Suite, Roles]:
    """A suite with judges, and images that are large enough for them."""
    seen = WORLD.part(40, 0, "train")
    large = seen.pixels.repeat_interleave(3, 2).repeat_interleave(3, 3)
    parts = {role: replace(seen, pixels=large) for role in ("auxiliary", "selection", "victims", "private")}
    roles = Roles("world", "00", **parts, n_classes=2)
    recognition = Recognition(batch=8, plan=Plan(steps=2, check_every=1))
    return Suite("judged", SUITE.trials[:2], recognition=recognition), roles


def test_judges_are_trained_before_anyone_begins(tmp_path):
    updates: list[Update] = []
    prepare(_Sum(), *judged(), out=tmp_path, progress=updates.append)
    assert len(list(tmp_path.glob("judge-*.safetensors"))) == 2
    assert [update.check and update.check.step for update in updates] == [None, 1, 2, 1, 2]
    assert {(update.index, update.total) for update in updates} == {(0, 2)}
    assert [update.trial for update in updates[1:]] == 2 * ["judge of an outsider"] + 2 * ["judge of an insider"]


def test_a_judge_that_an_attack_waits_for_is_told_from_the_attack():
    suite, roles = judged()
    updates: list[Update] = []
    evaluate(_Sum(), replace(suite, trials=suite.trials[:1]), roles, progress=updates.append)
    told = [update.check.what for update in updates if update.check is not None]
    assert told == 2 * ["judge of an insider"] + 2 * [""]
    assert {update.trial for update in updates} == {"decoder-conv (black-box insider)"}  # a function is attacked


def test_judges_whose_time_is_up_are_trained_on_the_next_time(tmp_path, monkeypatch):
    now, updates = [0.0], []
    monkeypatch.setattr(play.time, "monotonic", lambda: now[0])

    def watch(update: Update) -> None:
        updates.append(update)
        now[0] += 2.0

    with pytest.raises(TimeUp, match="after 0 of 2 attacks"):
        prepare(_Sum(), *judged(), out=tmp_path, progress=watch, time_budget=3.0)
    assert updates[-1].check.step == 1
    assert not list(tmp_path.glob("judge-*.safetensors"))
    del updates[:]
    prepare(_Sum(), *judged(), out=tmp_path, progress=updates.append)
    assert [update.check.step for update in updates[1:]] == [2, 1, 2]


def test_no_judge_is_trained_for_attacks_that_are_finished(tmp_path):
    evaluate(_Sum(), *judged(), out=tmp_path)
    for file in tmp_path.glob("judge-*"):
        file.unlink()
    prepare(_Sum(), *judged(), out=tmp_path, time_budget=1e-9)
    assert not list(tmp_path.glob("judge-*"))


def test_a_fit_ends_between_two_checks_when_its_time_is_up(tmp_path, monkeypatch):
    monkeypatch.setattr(pausing, "UNASKED", 0.0)
    suite = Suite("one", (Trial(replace(CONV, plan=Plan(steps=6, check_every=6)), Threat()),))
    now = iter(range(1000))
    with monkeypatch.context() as patch:
        patch.setattr(play.time, "monotonic", lambda: float(next(now)))
        with pytest.raises(TimeUp, match="after 0 of 1 attacks"):
            take_part(WORLD.client(), suite, ROLES, out=tmp_path, time_budget=8.0)
    (state,) = tmp_path.rglob("*.fit")
    assert 0 < json.loads(read_tensors(state)[1]["fit"])["step_count"] < 6


def test_what_others_have_finished_is_counted(tmp_path):
    places: list[tuple[int, int]] = []
    evaluate(WORLD.client(), replace(SUITE, trials=SUITE.trials[1:2], inquiries=()), ROLES, out=tmp_path)
    standing = take_part(
        WORLD.client(), SUITE, ROLES, out=tmp_path, progress=lambda u: places.append((u.index + u.is_done, u.total))
    )
    assert places[0] == (1, 6)
    assert places[-1] == standing() == (6, 6)  # the copy is finished with its original


class _Sum:
    """A client that is only a function."""

    def __call__(self, x):
        return x.flatten(2).mean(2)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "claims").write_text("in the way")
    with pytest.raises(RunError, match="cannot make"):
        Claims(tmp_path)


def test_what_attacks_share_stays_until_the_whole_suite_is_finished(tmp_path):
    suite = Suite("two", (Trial(Ridge(), Threat()), Trial(Averaged(Ridge(), 4), Threat(releases=4))))
    (tmp_path / "attacks").mkdir()
    prior = tmp_path / "attacks" / "prior-denoiser-00.fit"
    prior.touch()
    evaluate(WORLD.client(), suite.only(["ridge"]), ROLES, out=tmp_path)
    assert prior.exists()
    evaluate(WORLD.client(), suite, ROLES, out=tmp_path, keep_priors=True)
    assert prior.exists()
    evaluate(WORLD.client(), suite, ROLES, out=tmp_path)
    assert not prior.exists()
