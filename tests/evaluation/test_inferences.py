"""Inferences in a result: probes against chance, what judges see in reconstructions, and people among photos."""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from splitveil.attacks import Probe, Recognition, Ridge, Threat
from splitveil.check import UsageError
from splitveil.data import ImageSet
from splitveil.evaluation import Inquiry, Result, Suite, Trial, attribute_probes, evaluate, gauge, trial
from splitveil.evaluation.flags import FlagName
from splitveil.evaluation.gauge import Spent
from splitveil.evaluation.roles import Roles, roles_of
from splitveil.evaluation.victims import Victims
from splitveil.fitting import Plan
from splitveil.mechanisms import Gaussian
from splitveil.split import Client
from splitveil.writing import read_tensors, write_tensors
from worlds.small import row_images

pytestmark = pytest.mark.xdist_group("inferences")  # what they share is made once

PLAN = Plan(steps=60, lr=5e-3, warmup=5, ema=0.8, check_every=30)
DATA = row_images(n_train=150, n_other=120, n_classes=3, size=8)
SUITE = Suite(
    "asked",
    (Trial(Ridge(), Threat()), Trial(Ridge(), Threat(insider=True))),
    inquiries=(Inquiry(Probe(plan=PLAN), Threat()),),
    recognition=Recognition(batch=32, plan=PLAN),
)


def people() -> ImageSet:
    """The same images as photos of people: victims show two of three, the attacker's own show others."""
    shown = torch.nonzero(DATA.victims.labels < 2).flatten()
    others = torch.nonzero(DATA.selection.labels == 2).flatten()
    return replace(
        DATA,
        auxiliary=DATA.auxiliary.unlabeled(),
        victims=DATA.victims.select(shown),
        selection=DATA.selection.select(others),
        people=True,
    )


def client(std: float = 0.01) -> Client:
    return Client(nn.AvgPool2d(2), Gaussian(std=std))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the judges of these images are kept once they are trained."""
    return tmp_path_factory.mktemp("asked")


@pytest.fixture(scope="module")
def result(folder: Path) -> Result:
    return evaluate(client(), SUITE, DATA, out=folder)


def found(result: Result, name: str):
    return next(each for each in result.inferences if each.name == name)


def test_a_probe_is_told_beside_what_chance_would_reach(result):
    probe = found(result, "label-probe-linear")
    assert probe.chance == pytest.approx(1 / 3, abs=0.01)
    assert probe.score.low > 2 * probe.chance
    assert probe.attack is None
    assert probe.ceiling is None


def test_an_attribute_of_the_class_is_asked_beside_a_suite():
    asked = tuple(
        replace(each, attack=replace(each.attack, plan=PLAN)) for each in attribute_probes("last", (2,), n_classes=3)
    )
    result = evaluate(client(), Suite("one", SUITE.trials[:1]).asking(asked, name="last"), DATA)
    assert result.suite == "one, with last"
    assert [each.name for each in result.inferences] == ["last-probe-linear", "last-probe-mlp"]
    for each in result.inferences:
        assert each.chance == pytest.approx(2 / 3, abs=0.01)
        assert each.score.low > each.chance


@pytest.mark.parametrize(
    ("classes", "says"), [((3,), "no class 3"), ((-1,), "no class -1"), ((), "or none"), ((0, 1, 2), "all")]
)
def test_classes_that_decide_nothing_are_refused(classes, says):
    with pytest.raises(UsageError, match=says):
        attribute_probes("last", classes, n_classes=3)


def test_the_judge_looks_at_the_best_attack_and_at_the_originals(result):
    judged = found(result, "classifier-on-reconstruction")
    assert judged.attack == result.headline
    assert judged.score.mean > 0.8
    assert judged.ceiling.mean >= judged.score.mean - 0.1
    assert judged.chance == pytest.approx(1 / 3, abs=0.01)


def test_a_judge_s_seconds_are_its_own(folder, result):
    _, words = read_tensors(folder / f"judge-insider-{DATA.sha256[:8]}.safetensors")
    looking = found(result, "classifier-on-reconstruction").seconds - float(words["seconds"])
    assert float(words["seconds"]) > result.best.seconds > 0
    assert 0 < looking < float(words["seconds"])


def rising(method: Callable[..., Any], peak: list[float], height: float) -> Callable[..., Any]:
    """The same, with so much memory at its peak."""

    def higher(*words: Any, **named: Any) -> Any:
        peak[0] = max(peak[0], height)
        return method(*words, **named)

    return higher


def test_a_judge_s_peak_is_its_own_and_stays_with_it(folder, result, monkeypatch, tmp_path):
    """Found again by another evaluation, it tells what its training took, not what the attack did."""
    _, words = read_tensors(folder / f"judge-insider-{DATA.sha256[:8]}.safetensors")
    trained = Spent.from_json(words["spent"])
    judged = found(result, "classifier-on-reconstruction")
    assert judged.peak_memory_mb >= trained.peak_memory_mb > 10
    assert judged.peak_is_at_most == trained.is_at_most
    assert not list(folder.rglob("*.spent"))
    peak = [0.0]
    monkeypatch.setattr(gauge, "reset_peak", lambda device: not peak.__setitem__(0, 0.0))
    monkeypatch.setattr(gauge, "peak_mb", lambda device: peak[0])
    for name, height in (("observe", 5000.0), ("score", 9000.0), ("judge", 7000.0)):
        monkeypatch.setattr(Victims, name, rising(getattr(Victims, name), peak, height))
    again = evaluate(client(), replace(SUITE, inquiries=()), DATA, out=judged_in(folder, tmp_path))
    assert again.best.peak_memory_mb == 5000.0
    assert found(again, "classifier-on-reconstruction").peak_memory_mb == 7000.0


def test_a_judge_of_an_older_version_tells_its_seconds_alone(folder, result, tmp_path):
    for judge in judged_in(folder, tmp_path).glob("judge-*"):
        tensors, words = read_tensors(judge)
        write_tensors(judge, tensors, {"facts": words["facts"], "seconds": "1000.0"})
    again = found(evaluate(client(), SUITE, DATA, out=tmp_path), "classifier-on-reconstruction")
    assert again.seconds > 1000
    assert not again.flags
    assert again.peak_memory_mb is None


def test_a_judge_that_was_cut_short_counts_all_its_pieces(tmp_path):
    brief = Recognition(batch=32, plan=Plan(steps=4, check_every=2))
    suite = Suite("one", SUITE.trials[:1], recognition=brief)

    def stop(update):
        if update.check is not None:
            time.sleep(1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(client(), suite, DATA, out=tmp_path, progress=stop)
    assert len(list(tmp_path.glob("judge-*.spent"))) == 1
    whole = evaluate(client(), suite, DATA, out=tmp_path)
    assert found(whole, "classifier-on-reconstruction").seconds > 1 > whole.best.seconds
    assert not list(tmp_path.rglob("*.spent"))


def test_every_judge_is_trained_before_an_attack_begins(monkeypatch):
    """A gallery is looked at by the insider's judge, whoever attacks."""
    order = []
    fit, begin = Recognition.fit, trial.Gauge
    monkeypatch.setattr(Recognition, "fit", lambda *a, **k: (order.append(k["watch"]), fit(*a, **k))[1])
    monkeypatch.setattr(trial, "Gauge", lambda *a: (order.append("begin"), begin(*a))[1])
    brief = Recognition(batch=32, plan=Plan(steps=2, check_every=2))
    evaluate(client(), Suite("one", SUITE.trials[:1], recognition=brief), people())
    assert order[-1] == "begin"
    assert order[:-1]
    assert None not in order


@pytest.mark.parametrize("people_are_shown", [False, True])
def test_a_judge_that_was_cut_short_is_flagged_and_stays_so(people_are_shown, tmp_path):
    data = people() if people_are_shown else DATA
    names = ["re-identification R@1", "re-identification R@5"] if people_are_shown else ["classifier-on-reconstruction"]
    brief = Suite("one", SUITE.trials[:1], recognition=Recognition(batch=32, plan=Plan(steps=4, check_every=2)))
    for _ in range(2):  # the second is found as it was kept
        cut = evaluate(client(), brief, data, out=tmp_path)
        for name in names:
            (flag,) = found(cut, name).flags
            assert flag.name is FlagName.STILL_FALLING
            assert flag.reason.startswith("of the judge, after 4 steps")
        assert Result.from_json(cut.to_json()) == cut


@pytest.mark.parametrize("is_falling", [True, False])
def test_only_a_judge_that_was_cut_short_is_flagged(folder, result, tmp_path, is_falling):
    for judge in judged_in(folder, tmp_path).glob("judge-*"):
        tensors, words = read_tensors(judge)
        write_tensors(judge, tensors, words | {"still falling": str(is_falling)})
    again = evaluate(client(), replace(SUITE, inquiries=()), DATA, out=tmp_path)
    assert bool(found(again, "classifier-on-reconstruction").flags) is is_falling


def test_a_probe_that_was_cut_short_is_flagged():
    brief = replace(SUITE, recognition=None, inquiries=(Inquiry(Probe(plan=Plan(steps=4, check_every=2)), Threat()),))
    cut = evaluate(client(), brief, DATA)
    assert [flag.name for flag in found(cut, "label-probe-linear").flags] == [FlagName.STILL_FALLING]
    assert Result.from_json(cut.to_json()) == cut


def test_a_result_with_inferences_survives_json(result):
    assert Result.from_json(result.to_json()) == result
    words = json.loads(result.to_json())
    for each in words["inferences"]:
        del each["flags"]  # as results were written before there were any
    assert [each.score for each in Result.from_json(json.dumps(words)).inferences] == [
        each.score for each in result.inferences
    ]


def test_a_stored_evaluation_is_found_again_with_its_inferences(folder, result):
    updates = []
    again = evaluate(client(), SUITE, DATA, out=folder, progress=updates.append)
    assert all(update.was_stored for update in updates)
    assert again == result
    assert (folder / f"judge-insider-{DATA.sha256[:8]}.safetensors").exists()


def judged_in(folder: Path, fresh: Path) -> Path:
    """Another folder with the same judges."""
    for judge in folder.glob("judge-*"):
        shutil.copy(judge, fresh)
    return fresh


@pytest.mark.usefixtures("result")
def test_noise_that_hides_the_image_hides_the_class(folder, tmp_path):
    blind = evaluate(client(std=50.0), replace(SUITE, inquiries=()), DATA, out=judged_in(folder, tmp_path))
    judged = found(blind, "classifier-on-reconstruction")
    assert judged.score.mean < judged.ceiling.mean - 0.3


@pytest.mark.parametrize("fit", ["judge", "probe"])
def test_wherever_it_is_stopped_it_goes_on_to_the_same_inferences(fit, tmp_path):
    brief = Plan(steps=6, check_every=3)
    suite = replace(
        SUITE,
        trials=SUITE.trials[:1],
        inquiries=(Inquiry(Probe(plan=brief), Threat()),),
        recognition=Recognition(batch=32, plan=brief),
    )

    def stop(update):
        if update.check is not None and ("probe" in update.trial) == (fit == "probe"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(client(), suite, DATA, out=tmp_path / "cut", progress=stop)
    assert len(list(tmp_path.rglob("*.fit"))) == 1
    resumed = evaluate(client(), suite, DATA, out=tmp_path / "cut")
    whole = evaluate(client(), suite, DATA, out=tmp_path / "whole")
    assert [each.score for each in resumed.inferences] == [each.score for each in whole.inferences]
    assert not list(tmp_path.rglob("*.fit"))


def test_people_are_found_among_other_photos_of_them():
    data = people()
    result = evaluate(client(), SUITE, data)
    names = [each.name for each in result.inferences]
    assert "label-probe-linear" not in names  # the attacker's own images show nobody who has a label
    first, fifth = found(result, "re-identification R@1"), found(result, "re-identification R@5")
    assert first.chance == pytest.approx(0.5, abs=0.05)  # photos of two people, as many of each
    assert fifth.chance > 0.9
    assert first.score.low > first.chance
    assert first.ceiling.mean >= first.score.mean - 0.1
    assert fifth.score.mean >= first.score.mean


def test_images_without_labels_have_no_inferences():
    roles: Roles = replace(roles_of(DATA), n_classes=None)
    assert evaluate(client(), SUITE, roles).inferences == ()
