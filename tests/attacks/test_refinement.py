"""How far a search is followed, when it is finished, and that nothing of it is done twice."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from splitveil.attacks import (
    DecoderAttack,
    OptimizationAttack,
    Ridge,
    Seen,
    Threat,
    grant,
    oracle_of,
    refinement,
)
from splitveil.attacks.canvas import Canvas, PixelCanvas, network_canvas
from splitveil.attacks.channel import Channel
from splitveil.attacks.descent import Descent
from splitveil.attacks.refinement import Begin, Search
from splitveil.fitting import Check, Plan
from splitveil.mechanisms import Chain, Dropout, Gaussian
from splitveil.metrics import mse
from splitveil.randomness import SeededSource
from splitveil.split import Client
from worlds.linear_gaussian import Matrix
from worlds.searches import MAP, WIDE, WORLD, held


def test_a_search_that_goes_too_far_is_followed_a_part_of_the_way():
    """Told that there is no noise, it explains the noise; without a candidate in between, half of its way is best."""
    client = Client(Matrix(WIDE.matrix), Gaussian(std=0.1))
    known = held(WIDE, client)
    attack = OptimizationAttack(prior="none", start="affine", steps=60, n_tuned=48)
    found = attack.fit(known, seed=0)
    x = WIDE.part(400, 0, "victims").images()
    seen = Seen(oracle_of(client).release(x, source=SeededSource(1, "victims")))
    share = found.choice.share
    assert 0 <= share < 0.9
    assert mse(x, found(seen)).mean() <= 1.02 * mse(x, Ridge().fit(known, seed=0)(seen)).mean()
    assert f"{share:.0%} of the way" in found.health.chosen


@pytest.mark.parametrize(
    ("wanted", "moved", "share"), [(1.0, 2.0, 0.5), (1.0, 0.5, 1.0), (-1.0, 1.0, 0.0), (1.0, 0.0, 0.0)]
)
def test_it_is_followed_as_far_as_least_squares_says(wanted, moved, share):
    sides = (torch.full((1, 2, 3, 4, 4), side) for side in (wanted, moved))
    assert refinement.follow(*sides).item() == share


@pytest.mark.parametrize(("steps", "is_falling"), [(1, True), (4, True), (12, True), (120, False)])
def test_a_search_that_more_steps_would_help_is_still_falling(steps, is_falling, tmp_path):
    known, attack, state = held(WORLD), replace(MAP, steps=steps), tmp_path / "search"
    found = attack.fit(known, seed=0, state=state)
    assert found.health.still_falling == is_falling
    assert attack.fit(known, seed=0, state=state).health == found.health


def test_half_the_steps_may_do_with_another_weight():
    """With the same one they leave 11 % more; with the one that suits them, less."""
    client = Client(Matrix(WIDE.matrix), Gaussian(std=0.1))
    parts = {"auxiliary": WIDE.part(800, 0, "auxiliary"), "selection": WIDE.part(150, 0, "selection")}
    known = grant(Threat(), oracle=oracle_of(client), **parts)
    attack = OptimizationAttack(prior="tv", start="noise", steps=60, n_tuned=24)
    found = attack.fit(known, seed=0)
    assert found.choice.stop == 60
    assert not found.health.still_falling


def test_a_search_that_stops_early_by_choice_is_not_tried_with_half_of_its_steps(monkeypatch):
    ran, run = [], Descent.run
    monkeypatch.setattr(Descent, "run", lambda descent, *a, **k: ran.append(descent.steps) or run(descent, *a, **k))
    client = Client(Matrix(WIDE.matrix), Gaussian(std=0.1))
    attack = OptimizationAttack(prior="none", start="mean", steps=400, lr=0.3, n_tuned=48)
    found = attack.fit(held(WIDE, client), seed=0)
    assert found.choice.stop < 400
    assert set(ran) == {400}
    assert not found.health.still_falling


def test_answers_are_not_searched_twice(tmp_path):
    known = held(WORLD)
    seen = Seen(oracle_of(WORLD.client()).release(WORLD.part(4, 1).images(), source=SeededSource(0)))
    attack, state = OptimizationAttack(steps=5, n_tuned=4), tmp_path / "trial.fit"
    checks: list[Check] = []
    first = attack.fit(known, seed=0, state=state, watch=checks.append)(seen)
    assert checks[-1].score == attack.fit(known, seed=0).health.selection_mse
    again = attack.fit(known, seed=0, state=state)
    again._inverter = None  # type: ignore[attr-defined]  # whoever asks it fails
    assert torch.equal(again(seen), first)
    with pytest.raises(TypeError):
        again(Seen(seen.z_sent + 1))
    (answer,) = tmp_path.glob("*.answer")
    answer.write_bytes(answer.read_bytes()[:-1])
    assert torch.equal(attack.fit(known, seed=0, state=state)(seen), first)  # a damaged answer is found anew
    assert all(path.name.startswith("trial.fit") for path in tmp_path.iterdir())  # gone with the trial


def test_whoever_watches_can_end_it_among_the_victims_and_it_goes_on_there(tmp_path, monkeypatch):
    monkeypatch.setattr(refinement, "CHUNK", {"cpu": 3})
    known, state = held(WORLD), tmp_path / "trial.fit"
    seen = Seen(oracle_of(WORLD.client()).release(WORLD.part(7, 1).images(), source=SeededSource(0)))
    attack = OptimizationAttack(prior="deep-image-prior", width=4, start="mean", steps=150, n_tuned=4)
    wanted = attack.fit(known, seed=0)
    checks: list[Check] = []
    most = 10_000

    def watch(check: Check) -> None:
        checks.append(check)
        if len(checks) >= most:
            raise KeyboardInterrupt

    inverter = attack.fit(known, seed=0, watch=watch, state=state)
    most = (fitted := len(checks)) + 2  # at least one word about each piece
    with pytest.raises(KeyboardInterrupt):
        inverter(seen)
    assert len(list(tmp_path.glob("*.answer"))) == (1 if wanted.choice.stop < 100 else 0)
    most, fitted = 10_000, len(checks)
    monkeypatch.setattr(refinement, "mse", None)  # what was chosen is not tried again
    resumed = attack.fit(known, seed=0, watch=watch, state=state)
    assert resumed.health == wanted.health
    assert len(checks) == fitted + 1
    assert torch.equal(resumed(seen), wanted(seen))
    assert len(list(tmp_path.glob("*.answer"))) == 3


def at_once(canvas: Canvas, channel: Channel, side: int, releases: int = 1) -> int:
    """How many images of this side are searched together on a GPU; the client sends 16 numbers."""
    begin = Begin(torch.zeros(1, 3, side, side), None)
    search = Search(Descent(channel, canvas, 5, 0.1), begin, lambda seen: torch.zeros(1, canvas.size))
    return search.inputs_at_once(Seen(torch.zeros(releases, 2, 16)))


def test_fewer_are_searched_at_once_where_each_takes_more_memory(monkeypatch):
    monkeypatch.setattr(refinement, "CHUNK", {"cpu": refinement.CHUNK["cuda"]})
    hidden = Client(nn.Flatten(), Chain([Dropout(rate=0.5), Gaussian(std=1.0)]))
    plain, dropped = Channel(WORLD.client(), 1.0), Channel(hidden, 1.0, draws=8)
    sides = (28, 32, 64, 128, 512)
    assert [at_once(PixelCanvas((3, side, side)), plain, side) for side in sides] == [1000, 1000, 1000, 250, 15]
    widths = {width: network_canvas((3, 64, 64), width=width, seed=0, device=torch.device("cpu")) for width in (24, 64)}
    assert at_once(widths[24], plain, 64) == 1000
    wide = at_once(widths[64], plain, 64)
    assert 300 < wide < 500
    assert 4 * wide * widths[64].n_held == pytest.approx(20e9, rel=0.01)
    pixels = PixelCanvas((3, 32, 32))
    monkeypatch.setattr(refinement, "HELD", 1000 * (pixels.n_held + 8 * 4 * 16))
    assert [at_once(pixels, dropped, 32, releases) for releases in (1, 16, 100)] == [1000, 765, 331]
    assert at_once(pixels, plain, 32, 16) == 1000  # without scatter the mean of releases says it all
    monkeypatch.setattr(refinement, "HELD", 1)
    assert at_once(pixels, plain, 32) == 1


@pytest.mark.parametrize("prior", ["gaussian", "tv"])
def test_candidates_are_tried_on_as_many_images_at_once_as_memory_allows(prior, monkeypatch):
    attack = OptimizationAttack(prior=prior, steps=6, n_tuned=16)
    whole = attack.fit(held(WORLD), seed=0).health
    begun, run = [], Descent.run
    monkeypatch.setattr(refinement, "CHUNK", {"cpu": 12})
    monkeypatch.setattr(
        Descent,
        "run",
        lambda self, start, base, *more, **options: begun.append(len(base)) or run(self, start, base, *more, **options),
    )
    pieces = attack.fit(held(WORLD), seed=0).health
    assert len(begun) > 1
    assert max(begun) <= 12
    assert pieces.chosen == whole.chosen
    assert pieces.selection_mse == pytest.approx(whole.selection_mse, rel=1e-4)


@pytest.mark.parametrize("steps", [6, 4000])
def test_a_search_is_no_more_finished_than_the_decoder_it_starts_from(steps):
    plan = Plan(steps=steps, lr=2e-3, check_every=2, patience=3, min_gain=0.2)
    decoder = DecoderAttack("conv", batch=32, plan=plan)
    known = held(WORLD)
    attack = OptimizationAttack(prior="gaussian", start="decoder", steps=120, n_tuned=4, decoder=decoder)  # enough
    found, first = attack.fit(known, seed=0).health, decoder.fit(known, seed=0).health
    assert found.still_falling is first.still_falling is (steps == 6)
    assert found.train_mse == first.train_mse
    assert found.steps >= first.steps
