"""What a trial says it took: all its pieces, and no other trial's memory."""

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from splitveil import fitting
from splitveil.attacks import Attack, DecoderAttack, Inverter, OptimizationAttack, Ridge, Threat, refinement
from splitveil.attacks.base import Need
from splitveil.evaluation import Result, Roles, Suite, Trial, Update, evaluate, gauge
from splitveil.evaluation.gauge import Gauge, Spent
from splitveil.evaluation.victims import Victims
from splitveil.fitting import Check, Plan
from worlds.linear_gaussian import world

WORLD = world(side=8, features=6, noise_std=0.2)
PARTS = {role: WORLD.part(n, 0, role) for role, n in {"auxiliary": 60, "selection": 20, "victims": 30}.items()}
ROLES = Roles("world", "00", **PARTS, private=None, n_classes=2)
CONV = Suite("one", (Trial(DecoderAttack("conv", batch=16, plan=Plan(steps=6, check_every=3)), Threat()),))
CPU = torch.device("cpu")
LONG = 1.0  # seconds, longer than any trial here by itself


@dataclass(frozen=True)
class Greedy(Attack):
    """Ridge, and a great deal of memory."""

    name = "greedy"
    needs = frozenset({Need.PAIRS})

    def _fit(self, known, course) -> Inverter:
        torch.ones(300 * 2**20 // 4).sum()
        return Ridge().fit(known, seed=course.seed)


def test_a_trial_after_a_large_one_has_less_at_its_peak():
    if not gauge.reset_peak(CPU):
        pytest.skip("this machine does not forget a peak")
    large, small = evaluate(
        WORLD.client(), Suite("two", (Trial(Greedy(), Threat()), Trial(Ridge(), Threat()))), ROLES
    ).attacks
    assert large.peak_memory_mb > small.peak_memory_mb + 200
    assert not large.peak_is_at_most
    assert small.peak_memory_mb > 10


def test_a_peak_that_cannot_be_forgotten_is_said_to_be_at_most(monkeypatch):
    monkeypatch.setattr(gauge, "reset_peak", lambda device: False)
    found = evaluate(WORLD.client(), Suite("one", (Trial(Ridge(), Threat()),)), ROLES)
    assert found.best.peak_is_at_most
    assert Result.from_json(found.to_json()) == found


def _cut(folder: Path, suite: Suite, at: int) -> None:
    """Evaluate until the check of that number, and end there after a while."""
    seen: list[Check] = []

    def watch(update: Update) -> None:
        seen.extend([] if update.check is None else [update.check])
        if len(seen) == at:
            time.sleep(LONG)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(WORLD.client(), suite, ROLES, out=folder, progress=watch)


def test_all_pieces_of_a_fit_are_counted(tmp_path):
    evaluate(WORLD.client(), CONV, ROLES)  # what the first fit of a process loads is not measured here
    _cut(tmp_path, CONV, at=1)
    assert LONG < evaluate(WORLD.client(), CONV, ROLES, out=tmp_path).best.seconds < 3 * LONG
    assert not list(tmp_path.rglob("*.spent"))


def test_all_pieces_of_the_victims_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(refinement, "CHUNK", {"cpu": 10})
    suite = Suite("one", (Trial(OptimizationAttack(steps=5, n_tuned=4), Threat()),))
    _cut(tmp_path, suite, at=4)
    _cut(tmp_path, suite, at=1)
    assert 2 * LONG < evaluate(WORLD.client(), suite, ROLES, out=tmp_path).best.seconds < 5 * LONG


def test_a_kill_forgets_what_was_spent_since_the_last_state(tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "SAVE_EVERY", 0.0)
    state, now = tmp_path / "trial.fit", [0.0]
    monkeypatch.setattr(gauge.time, "monotonic", lambda: now[0])
    first = Gauge(CPU, state).__enter__()
    now[0] = 7.0
    first.watched(None)(Check(1, 0.0, 0.0, 0.0))
    now[0] = 9.0  # killed
    with Gauge(CPU, state) as second:
        now[0] = 10.0
        with second.aside():
            now[0] = 20.0
        assert second.read().seconds == 7.0 + 1.0


def test_what_is_put_aside_is_gauged_by_itself():
    if not gauge.reset_peak(CPU):
        pytest.skip("this machine does not forget a peak")
    with Gauge(CPU, None) as mine:
        torch.ones(100 * 2**20 // 4).sum()
        before = mine.read().peak_memory_mb
        with mine.aside() as apart:
            torch.ones(300 * 2**20 // 4).sum()
            time.sleep(LONG / 4)
            looked = apart.read()
        spent = mine.read()
    assert before <= spent.peak_memory_mb < before + 50
    assert looked.peak_memory_mb > before + 100
    assert spent.seconds < looked.seconds > LONG / 4


def test_what_is_put_aside_and_cut_short_is_not_kept_either(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(gauge.time, "monotonic", lambda: now[0])

    def cut() -> None:
        with Gauge(CPU, tmp_path / "trial.fit") as mine:
            now[0] = 3.0
            with mine.aside():
                now[0] = 10.0
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut()
    with Gauge(CPU, tmp_path / "trial.fit") as again:
        assert again.read().seconds == 3.0
        again.forget()
    assert not list(tmp_path.iterdir())


def test_scoring_is_not_the_attack_s(monkeypatch):
    if not gauge.reset_peak(CPU):
        pytest.skip("this machine does not forget a peak")
    suite, score = Suite("one", (Trial(Ridge(), Threat()),)), Victims.score

    def slow(*words):
        torch.ones(400 * 2**20 // 4).sum()
        time.sleep(LONG)
        return score(*words)

    usual = evaluate(WORLD.client(), suite, ROLES).best
    monkeypatch.setattr(Victims, "score", slow)
    found = evaluate(WORLD.client(), suite, ROLES).best
    assert found.seconds < LONG
    assert found.peak_memory_mb < usual.peak_memory_mb + 200


@pytest.mark.parametrize(
    ("first", "second", "peak"), [(None, 2.0, None), (2.0, None, None), (2.0, 5.0, 5.0), (None, None, None)]
)
def test_of_two_the_peak_is_known_where_each_is(first, second, peak):
    both = Spent(1.0, first) + Spent(2.0, second, is_at_most=True)
    assert both == Spent(3.0, peak, is_at_most=True)
    assert Spent.from_json(both.to_json()) == both


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"seconds": "many", "peak_memory_mb": 1, "is_at_most": false}'])
def test_a_damaged_count_begins_anew(tmp_path, text):
    (tmp_path / "trial.fit.spent").write_text(text)
    with Gauge(CPU, tmp_path / "trial.fit") as mine:
        assert mine.read().seconds < LONG


def test_the_peak_of_an_earlier_piece_stays(tmp_path):
    words = {"seconds": 3.0, "peak_memory_mb": 1e6, "is_at_most": True}
    (tmp_path / "trial.fit.spent").write_text(json.dumps(words))
    with Gauge(CPU, tmp_path / "trial.fit") as mine:
        assert replace(mine.read(), seconds=3.0) == gauge.Spent(**words)
