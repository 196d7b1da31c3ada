"""Evaluations: what they report, that they resume, and that they raise their flags."""

import errno
import json
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

from splitveil import fitting
from splitveil.attacks import (
    Attack,
    Averaged,
    Box,
    Inverter,
    Need,
    OptimizationAttack,
    Pairs,
    RecordedPairs,
    Ridge,
    ShadowAttack,
    Threat,
    grant,
    oracle_of,
    refinement,
)
from splitveil.bounds import MSE, Bound, Kind, Parts, Side, bounds_of, known_prior, look
from splitveil.check import RunError, UsageError
from splitveil.data import Part
from splitveil.evaluation import Result, Roles, Suite, Trial, evaluate, prepare, take_part
from splitveil.evaluation.flags import FlagName
from splitveil.evaluation.pictures import UNTRAINED_SIDE, lacks
from splitveil.evaluation.play import TimeUp
from splitveil.mechanisms import Gaussian
from splitveil.metrics import Interval
from splitveil.randomness import SeededSource
from splitveil.split import Client
from worlds.evaluations import CONV, PARTS, ROLES, WORLD, timeless
from worlds.linear_gaussian import world

TINY = Suite(
    "tiny",
    (
        Trial(Ridge(), Threat()),
        Trial(CONV, Threat()),
        Trial(Averaged(Ridge(), 4), Threat(releases=4)),
        Trial(Ridge(), Threat(insider=True)),
    ),
)
RIDGE = Suite("ridge", TINY.trials[:1])


@pytest.fixture(scope="module")
def result() -> Result:
    return evaluate(WORLD.client(), TINY, ROLES, seeds=(0, 1))


def test_the_headline_is_the_lowest_error_and_the_oracle_is_below_it(result):
    means = {attack.name: attack.mse.mean for attack in result.attacks}
    assert means[result.headline] == min(means.values())
    assert result.headline == "ridge-mean4 (white-box outsider, 4 releases)"
    assert result.headline_one_release == "ridge (white-box insider)"
    assert result.oracle_mse.mean < min(means.values())


def test_leak_is_measured_against_the_mean_auxiliary_image(result):
    x = PARTS["victims"].images()
    prior = (x - PARTS["auxiliary"].images().mean(0)).square().mean().item()
    assert result.prior_mse == pytest.approx(prior, rel=1e-5)
    for attack in result.attacks:
        assert attack.leak.mean == pytest.approx(1 - attack.mse.mean / prior, rel=1e-5)
        assert attack.leak.low < attack.leak.mean < attack.leak.high


def test_every_number_has_an_interval_around_it(result):
    for attack in result.attacks:
        for span in (attack.mse, attack.psnr, attack.ssim, attack.lpips, attack.leak):
            assert span.low < span.mean < span.high
    assert result.lpips_upsampled
    assert result.seeds == (0, 1)


def test_a_result_of_an_evaluation_survives_json(result):
    assert Result.from_json(result.to_json()) == result


def test_what_could_not_be_judged_is_said(result):
    assert set(result.not_checked) == {
        FlagName.FAILS_UNDEFENDED,
        FlagName.BLACK_BEATS_WHITE,
        FlagName.BELOW_BOUND,
    }


def test_what_could_not_be_played_is_kept_with_the_reason(result, tmp_path):
    assert result.not_played == ()
    asked = Trial(Ridge(), Threat(Box.BLACK, queries=400))
    suite = replace(TINY, trials=(*TINY.trials, asked))
    poor = replace(ROLES, private=None)
    found = evaluate(replace(WORLD, noise_std=0.0).client(), suite, poor, out=tmp_path)
    assert [(each.name, each.reason) for each in found.not_played] == [
        (TINY.trials[2].name, "nothing is random, so releases are alike"),
        (TINY.trials[3].name, "needs the private training images"),
        (asked.name, "needs 400 queries, there are images for 304"),
    ]
    assert [each.name for each in found.attacks] == [trial.name for trial in TINY.trials[:2]]
    assert Result.load(tmp_path / "result.json") == found


def test_the_client_is_left_as_it_was():
    encoder = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.3))
    client = Client(encoder, Gaussian(std=0.1)).train()
    encoder[1].eval()
    before = {name: value.clone() for name, value in client.state_dict().items()}
    evaluate(client, RIDGE, ROLES)
    assert [part.training for part in encoder] == [True, False, True]
    assert all(torch.equal(value, before[name]) for name, value in client.state_dict().items())


def test_a_black_box_of_any_number_of_queries_is_played_once():
    """An attack that does not use the client cannot tell it from a white box."""
    both = Suite("both", (Trial(CONV, Threat()), Trial(CONV, Threat(Box.BLACK)), Trial(Ridge(), Threat(Box.BLACK))))
    begun = []

    def watch(update):
        if not update.is_done and update.check is None:
            begun.append(update.trial)

    white, black, alone = evaluate(WORLD.client(), both, ROLES, seeds=(0, 1), progress=watch).attacks
    assert begun.count("decoder-conv (white-box outsider)") == 2
    assert "decoder-conv (black-box outsider)" not in begun
    assert begun.count("ridge (black-box outsider)") == 2
    assert black.mse == white.mse
    own = evaluate(WORLD.client(), replace(both, trials=both.trials[1:2]), ROLES, seeds=(0, 1)).attacks[0]
    assert own.mse == black.mse
    assert alone.mse != black.mse


def test_an_interrupted_evaluation_goes_on_where_it_stopped(tmp_path, result):
    seen = []

    def interrupt(update):
        if update.mse is None and update.check is None:
            seen.append(update.trial)
            if len(seen) == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(WORLD.client(), TINY, ROLES, seeds=(0, 1), out=tmp_path, progress=interrupt)
    assert len(list((tmp_path / "attacks").glob("*.json"))) == 2
    begun, stored = [], []
    resumed = evaluate(
        WORLD.client(),
        TINY,
        ROLES,
        seeds=(0, 1),
        out=tmp_path,
        progress=lambda u: (stored if u.was_stored else begun).append(u.trial),
    )
    assert len(stored) == 2
    assert timeless(resumed) == timeless(result)
    assert Result.load(tmp_path / "result.json") == resumed


def test_an_interruption_inside_a_fit_loses_that_attack_alone(tmp_path):
    def interrupt(update):
        if update.check is not None and update.index == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(WORLD.client(), TINY, ROLES, out=tmp_path, progress=interrupt)
    assert [path.stem for path in (tmp_path / "attacks").glob("*.json")] == ["ridge--white-box-outsider-seed0"]


def test_a_fit_in_flight_is_taken_up_again(tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "SAVE_EVERY", 0.0)
    suite = Suite("one", (Trial(Averaged(CONV, 4), Threat(releases=4)),))
    wanted = evaluate(WORLD.client(), suite, ROLES, out=tmp_path / "whole")

    def interrupt(update):
        if update.check is not None and update.check.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(WORLD.client(), suite, ROLES, out=tmp_path / "cut", progress=interrupt)
    updates = []
    resumed = evaluate(WORLD.client(), suite, ROLES, out=tmp_path / "cut", progress=updates.append)
    assert [update.check.step for update in updates if update.check] == [6]
    assert timeless(resumed) == timeless(wanted)
    assert {path.suffix for path in (tmp_path / "cut" / "attacks").iterdir()} == {".json", ".npz", ".png"}


def rerun(tmp_path, client=None, suite=RIDGE, roles=ROLES) -> bool:
    """Whether the trial had to be run again."""
    updates = []
    evaluate(client or WORLD.client(), suite, roles, out=tmp_path, progress=updates.append)
    return not updates[-1].was_stored


def test_another_client_or_other_images_are_not_taken_for_the_stored_ones(tmp_path):
    assert rerun(tmp_path)
    assert not rerun(tmp_path)
    assert rerun(tmp_path, client=replace(WORLD, noise_std=0.3).client())
    assert rerun(tmp_path, client=replace(WORLD, noise_std=0.3, matrix=2 * WORLD.matrix).client())
    assert rerun(
        tmp_path,
        client=replace(WORLD, noise_std=0.3, matrix=2 * WORLD.matrix).client(),
        roles=replace(ROLES, sha256="11"),
    )


@pytest.mark.parametrize("suffix", [".json", ".npz"])
@pytest.mark.parametrize("how", ["overwritten", "cut"])
def test_a_damaged_trial_is_run_again(tmp_path, suffix, how):
    assert rerun(tmp_path)
    place = next((tmp_path / "attacks").glob(f"*{suffix}"))
    place.write_bytes(b"damaged" if how == "overwritten" else place.read_bytes()[:-30])
    assert rerun(tmp_path)
    assert not rerun(tmp_path)


def test_a_disk_that_refuses_a_trial_is_told_in_one_line(tmp_path, monkeypatch):
    def full(samples, path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("splitveil.evaluation.store.save_grid", full)
    with pytest.raises(RunError, match=r"cannot write .*seed0.png: No space left on device; free some space"):
        evaluate(WORLD.client(), RIDGE, ROLES, out=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot make .*attacks: "):
        evaluate(WORLD.client(), RIDGE, ROLES, out=tmp_path / "file")


def test_changed_settings_of_an_attack_run_again(tmp_path):
    first = Suite("one", (Trial(CONV, Threat()),))
    assert rerun(tmp_path, suite=first)
    assert not rerun(tmp_path, suite=first)
    assert rerun(tmp_path, suite=Suite("one", (Trial(replace(CONV, batch=16), Threat()),)))


def test_two_suites_do_not_share_a_folder(tmp_path):
    kept = evaluate(WORLD.client(), RIDGE, ROLES, out=tmp_path)
    begun = []
    other = replace(RIDGE, name="other")
    for play in (evaluate, take_part, prepare):
        with pytest.raises(
            UsageError, match=r"json is the result of suite 'ridge'; give suite 'other' a folder of its"
        ):
            play(WORLD.client(), other, ROLES, out=tmp_path, progress=begun.append)
    assert begun == []
    assert Result.load(tmp_path / "result.json") == kept
    assert evaluate(WORLD.client(), other.only(["ridge"]), ROLES, out=tmp_path).suite == "other, only ridge"
    (tmp_path / "result.json").write_text("damaged")
    evaluate(WORLD.client(), other, ROLES, out=tmp_path)
    assert Result.load(tmp_path / "result.json").suite == "other"


def test_another_head_is_another_attack_for_whoever_holds_it(tmp_path):
    heads = [nn.Linear(24, 2) for _ in range(2)]
    shadow = ShadowAttack(head=True, batch=32, plan=CONV.plan, decoder=CONV)
    suite = Suite("two", (Trial(shadow, Threat(Box.QUERY_FREE, head_known=True)), *RIDGE.trials))

    def played(head: nn.Module) -> set[str]:
        updates = []
        evaluate(WORLD.client(), suite, ROLES, out=tmp_path, head=head, progress=updates.append)
        return {update.trial.split()[0] for update in updates if not update.was_stored}

    assert played(heads[0]) == {"shadow-head", "ridge"}
    assert played(heads[0]) == set()
    assert played(heads[1]) == {"shadow-head"}


def test_a_time_budget_ends_among_the_victims_and_the_same_call_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(refinement, "CHUNK", {"cpu": 20})
    suite = Suite("one", (Trial(OptimizationAttack(steps=5, n_tuned=4), Threat()),))
    wanted = evaluate(WORLD.client(), suite, ROLES, out=tmp_path / "whole")
    now = [0.0]
    monkeypatch.setattr("splitveil.evaluation.play.time.monotonic", lambda: now[0])

    def progress(update):
        now[0] = 9.0 if len(list((tmp_path / "cut").rglob("*.answer"))) == 2 else 0.0  # two pieces of victims are done

    with pytest.raises(TimeUp):
        evaluate(WORLD.client(), suite, ROLES, out=tmp_path / "cut", progress=progress, time_budget=5.0)
    assert len(list((tmp_path / "cut").rglob("*.answer"))) == 2
    resumed = evaluate(WORLD.client(), suite, ROLES, out=tmp_path / "cut")
    assert timeless(resumed) == timeless(wanted)
    assert not list((tmp_path / "cut").rglob("*.fit*"))


def test_progress_tells_beginning_checks_and_end():
    updates = []
    evaluate(WORLD.client(), Suite("one", (Trial(CONV, Threat()),)), ROLES, progress=updates.append)
    assert updates[0].check is updates[0].mse is None
    assert [u.check.step for u in updates if u.check] == [3, 6]
    assert updates[-1].mse > 0
    assert {(u.index, u.total) for u in updates} == {(0, 1)}


def test_samples_are_kept_as_pictures_and_arrays(tmp_path):
    evaluate(WORLD.client(), RIDGE, ROLES, out=tmp_path)
    place = tmp_path / "attacks" / "ridge--white-box-outsider-seed0"
    assert place.with_suffix(".png").exists()
    with np.load(place.with_suffix(".npz")) as file:
        assert file["x"].shape == file["x_hat"].shape == (12, 1, 12, 12)
        np.testing.assert_array_equal(file["x"], PARTS["victims"].pixels[torch.from_numpy(file["index"])].numpy())
        errors = ((file["x"] / 255 - file["x_hat"] / 255) ** 2).mean((1, 2, 3))
        np.testing.assert_allclose(errors, file["mse"], rtol=0.05)
        assert errors[:4].max() < errors[4:8].min() < errors[8:].min()


def test_people_leave_no_pictures(tmp_path):
    people = replace(ROLES, people=True)
    evaluate(WORLD.client(), RIDGE, people, out=tmp_path)
    files = list((tmp_path / "attacks").iterdir())
    assert {path.suffix for path in files} == {".json", ".npz"}
    with np.load(next(path for path in files if path.suffix == ".npz")) as file:
        assert all(file[name].ndim == 1 for name in file.files)
    with pytest.raises(UsageError, match="shows people"):
        evaluate(WORLD.client(), RIDGE, people, keep_samples=True)


def test_a_function_is_attacked_as_a_black_box():
    client = WORLD.client()
    source = SeededSource(0, "own noise")
    found = evaluate(lambda x: client(x, source=source), TINY, ROLES)
    assert all(attack.knowledge.startswith("black-box") for attack in found.attacks)
    assert found.best.leak.mean > 0.1


def test_images_without_a_full_window_have_no_ssim():
    tiny = world(side=6, features=8)
    parts = {role: tiny.part(40, 0, role) for role in ("auxiliary", "selection", "victims")}
    found = evaluate(tiny.client(), RIDGE, Roles("tiny", "00", **parts, private=None, n_classes=None))
    assert found.best.ssim is None
    assert found.best.lpips is not None
    assert Result.from_json(found.to_json()) == found


def test_a_suite_is_finished_on_images_too_small_for_some_of_it():
    tiny = world(side=4, features=8)
    parts = {role: tiny.part(40, 0, role) for role in ("auxiliary", "selection", "victims")}
    structural = Trial(replace(CONV, objective="ssim"), Threat())
    untrained = Trial(OptimizationAttack(prior="deep-image-prior", steps=2, n_tuned=2), Threat())
    suite = Suite("some", (*RIDGE.trials, structural, untrained))
    found = evaluate(tiny.client(), suite, Roles("tiny", "00", **parts, private=None, n_classes=None))
    assert [each.name for each in found.attacks] == ["ridge (white-box outsider)"]
    assert [each.reason for each in found.not_played] == ["needs 11×11 pixels", "needs 5 pixels a side"]


@pytest.mark.parametrize("side", [4, 5])
def test_the_deep_image_prior_needs_what_it_is_said_to_need(side):
    tiny = world(side=side, features=8)
    parts = {role: tiny.part(30, 0, role) for role in ("auxiliary", "selection")}
    attack = OptimizationAttack(prior="deep-image-prior", steps=2, n_tuned=2)
    known = grant(Threat(), oracle=oracle_of(tiny.client()), **parts)
    assert (lacks(attack, parts["selection"].image_shape) is None) is (side >= UNTRAINED_SIDE)
    with nullcontext() if side >= UNTRAINED_SIDE else pytest.raises(ValueError, match="more than 1 spatial element"):
        attack.fit(known, seed=0)(known.selection.first(2, source=SeededSource(0)).seen)


@pytest.mark.parametrize("seeds", [(), (1, 1)])
def test_seeds_must_differ(seeds):
    with pytest.raises(UsageError, match="seeds must be different"):
        evaluate(WORLD.client(), RIDGE, ROLES, seeds=seeds)


def names(result: Result, attack: str = "ridge (white-box outsider)") -> set[FlagName]:
    return {flag.name for flag in result.attack(attack).flags}


def test_a_random_client_that_was_asked_once_is_flagged():
    alone = evaluate(WORLD.client(), RIDGE, ROLES)
    assert alone.unreliable
    assert any(FlagName.NO_AVERAGING in reason for reason in alone.reasons)
    quiet = evaluate(replace(WORLD, noise_std=0.0).client(), RIDGE, ROLES)
    assert not quiet.unreliable
    assert quiet.reasons == ()


def test_an_attack_that_was_cut_short_is_flagged(result):
    assert names(result, "decoder-conv (white-box outsider)") >= {FlagName.STILL_FALLING}


@pytest.mark.parametrize(("ratio", "is_told"), [(1.4, True), (1.6, False)])
def test_a_headline_that_an_unfinished_attack_could_pass_is_not_relied_on(monkeypatch, ratio, is_told):
    """Here nothing is flagged of the headline itself."""
    quiet = replace(WORLD, noise_std=0.0).client()
    both = Suite("both", (Trial(Ridge(), Threat()), Trial(CONV, Threat())))
    found = evaluate(quiet, both, ROLES)
    apart = found.attack("decoder-conv (white-box outsider)").mse.mean / found.best.mse.mean
    assert found.headline == "ridge (white-box outsider)"
    monkeypatch.setattr("splitveil.evaluation.flags.CATCHES_UP", apart * 1.5 / ratio)
    found = evaluate(quiet, both, ROLES)
    assert found.best.flags == ()
    assert found.unreliable is is_told
    assert len(found.reasons) == is_told
    if is_told:
        assert "of decoder-conv (white-box outsider), not the headline" in found.reasons[0]
        assert found.reasons[0].startswith("loss still falling: ")


def test_an_attack_that_fails_on_an_undefended_client_is_flagged(result):
    for leak, is_flagged in ((0.01, True), (0.9, False)):
        span = Interval(leak, leak, leak)
        attacks = tuple(replace(attack, leak=span) for attack in result.attacks)
        before = replace(result, attacks=attacks, client="another")
        found = evaluate(WORLD.client(), RIDGE, ROLES, undefended=before)
        assert (FlagName.FAILS_UNDEFENDED in names(found)) is is_flagged
        assert FlagName.FAILS_UNDEFENDED not in found.not_checked


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"client": "another", "data_sha256": "11"},
            r"a result on other images \(world, 11\) than these \(world, 00\)",
        ),
        ({}, "of this very client; give that of one without its defense"),
    ],
)
def test_a_result_that_says_nothing_of_the_undefended_client_is_refused(result, changes, message):
    begun = []
    with pytest.raises(UsageError, match=message):
        evaluate(WORLD.client(), RIDGE, ROLES, undefended=replace(result, **changes), progress=begun.append)
    assert begun == []


@pytest.mark.parametrize(
    ("kind", "is_flagged"),
    [(Kind.PROVED, True), (Kind.SAMPLED, True), (Kind.ASYMPTOTIC, False), (Kind.HEURISTIC, False)],
)
def test_an_error_below_a_bound_is_flagged_if_the_bound_is_proved(kind, is_flagged):
    impossible = Bound("test", MSE, 1.0, Side.AT_LEAST, kind, ("nothing",), interval=(0.9, 1.1))
    found = evaluate(WORLD.client(), RIDGE, ROLES, bounds=[impossible])
    assert (FlagName.BELOW_BOUND in names(found)) is is_flagged
    assert (FlagName.BELOW_BOUND in found.not_checked) is not is_flagged
    assert found.bounds == (impossible,)


@pytest.mark.parametrize("label_known", [True, False])
def test_an_attack_that_knows_the_label_is_flagged_by_a_bound_that_allows_for_it(label_known):
    impossible = Bound("test", MSE, 1.0, Side.AT_LEAST, Kind.PROVED, ("nothing",), label_known=label_known)
    suite = Suite("label", (Trial(Ridge(), Threat(label_known=True)),))
    found = evaluate(WORLD.client(), suite, ROLES, bounds=[impossible])
    assert (FlagName.BELOW_BOUND in names(found, found.headline)) is label_known
    assert (FlagName.BELOW_BOUND in found.not_checked) is not label_known


def test_the_client_s_own_bounds_raise_no_flag_and_stand_in_the_result():
    client = WORLD.client()
    parts = Parts(ROLES.private, ROLES.auxiliary, ROLES.victims, 2)
    prior = torch.linalg.inv(WORLD.covariance)
    bounds = [*bounds_of(client, parts, releases=(1, 4)), known_prior(look(client, parts), prior)]
    found = evaluate(client, TINY, ROLES, bounds=bounds)
    assert not any(FlagName.BELOW_BOUND in names(found, attack.name) for attack in found.attacks)
    assert FlagName.BELOW_BOUND not in found.not_checked
    assert Result.from_json(found.to_json()).bounds == tuple(bounds)


@dataclass(frozen=True)
class Careless(Attack):
    """Ridge, but a white box is fitted on images that have nothing to do with what is sent."""

    name = "careless"
    needs = frozenset({Need.PAIRS})

    def _fit(self, known, course) -> Inverter:
        if known.threat.box is Box.BLACK:
            return Ridge().fit(known, seed=course.seed)
        mixed = Part(known.auxiliary.pixels.flip(0), known.auxiliary.labels)
        x, seen = mixed.images(), known.pairs.first(len(mixed), source=SeededSource(0)).seen
        return Ridge().fit(replace(known, pairs=RecordedPairs(Pairs(x, seen))), seed=course.seed)


@pytest.mark.parametrize(("attack", "is_flagged"), [(Ridge(), False), (Careless(), True)])
def test_a_black_box_that_beats_its_white_box_is_flagged(attack, is_flagged):
    both = Suite("both", (Trial(attack, Threat()), Trial(attack, Threat(Box.BLACK, queries=300))))
    found = evaluate(replace(WORLD, noise_std=0.02).client(), both, ROLES)
    assert (FlagName.BLACK_BEATS_WHITE in names(found, f"{attack.name} (white-box outsider)")) is is_flagged
    assert FlagName.BLACK_BEATS_WHITE not in names(found, f"{attack.name} (black-box-300 outsider)")
    assert FlagName.BLACK_BEATS_WHITE not in found.not_checked


def test_silence_is_flagged_as_no_better_than_the_prior():
    mute = nn.Sequential(nn.Flatten(), nn.Linear(144, 3))
    nn.init.zeros_(mute[1].weight)
    found = evaluate(mute, RIDGE, ROLES)
    assert FlagName.NO_BETTER_THAN_PRIOR in names(found)
    assert found.best.leak.mean == pytest.approx(0, abs=1e-3)


def test_stored_trials_are_readable_json(tmp_path):
    evaluate(WORLD.client(), RIDGE, ROLES, out=tmp_path)
    words = json.loads((tmp_path / "attacks" / "ridge--white-box-outsider-seed0.json").read_text())
    assert words["attack"] == "ridge"
    assert words["knowledge"] == "white-box outsider"
    assert words["mse"] > 0
