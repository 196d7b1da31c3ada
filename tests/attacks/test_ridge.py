"""Ridge against scikit-learn, in all of its forms; stopped at any check, it asks for nothing twice."""

import sys

import pytest
import torch
from sklearn.linear_model import LinearRegression

from splitveil.attacks import Box, Course, QueriedPairs, RecordedPairs, Ridge, Seen, Threat, grant, oracle_of
from splitveil.attacks.gathering import Gathering
from splitveil.attacks.ridge import _solve
from splitveil.metrics import mse
from splitveil.pausing import pausing
from splitveil.randomness import SeededSource
from worlds.linear_gaussian import world

ROOM = sys.modules["splitveil.attacks.ridge"]


def fitted(this, n: int):
    held = grant(
        Threat(), oracle=oracle_of(this.client()), auxiliary=this.part(n, 0, "a"), selection=this.part(200, 0, "s")
    )
    return Ridge().fit(held, seed=0)


def solve(pairs):
    return _solve(pairs, Course(seed=0), Gathering(Course(seed=0), 1.0))


def undamped(this, n: int):
    """The solution at a vanishing λ, which scikit-learn has too."""
    return solve(QueriedPairs(this.part(n, 0, "a"), oracle_of(this.client()))).at(1e-12)


def test_without_noise_it_is_least_squares():
    this, x = world(noise_std=0.0), world().part(300, 0, "v").images()
    own = this.part(900, 0, "a").images()
    z, z_own = (images.flatten(1).double() @ this.matrix.T for images in (x, own))
    reference = LinearRegression().fit(z_own, own.flatten(1).double())
    x_hat = undamped(this, 900)(Seen(z.float()[None]))
    wanted = torch.from_numpy(reference.predict(z)).reshape(x.shape).clamp(0, 1)
    torch.testing.assert_close(x_hat.double(), wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("strength", [1e-6, 1e-3, 1.0])
def test_the_gram_form_is_the_same_solution(monkeypatch, strength):
    this = world(noise_std=0.0)
    pairs = QueriedPairs(this.part(500, 0, "a"), oracle_of(this.client()))
    seen = Seen((this.part(50, 0, "v").images().flatten(1) @ this.matrix.T.float())[None])
    by_covariance = solve(pairs).at(strength)(seen)
    recorded = RecordedPairs(pairs.first(500, source=SeededSource(0)))
    monkeypatch.setattr(ROOM, "MAX_SIDE", 1)
    torch.testing.assert_close(solve(recorded).at(strength)(seen), by_covariance, atol=1e-5, rtol=0)


@pytest.mark.parametrize("queries", [None, 150])
@pytest.mark.parametrize("side", [59, 48])
def test_more_features_than_are_decomposed_do_not_make_it_weaker(monkeypatch, side, queries):
    """Of 60 features 59 directions say as much, and noise is drawn as often."""
    this = world(side=8, features=60, noise_std=0.3)
    threat = Threat() if queries is None else Threat(Box.BLACK, queries=queries)
    parts = {"auxiliary": this.part(150, 0, "a"), "selection": this.part(200, 0, "s")}
    known, x = grant(threat, oracle=oracle_of(this.client()), **parts), this.part(500, 0, "v").images()
    seen = Seen(oracle_of(this.client()).release(x, source=SeededSource(0, "v")))
    errors = []
    for most in (60, side):
        monkeypatch.setattr(ROOM, "MAX_SIDE", most)
        errors.append(mse(x, Ridge().fit(known, seed=0)(seen)).mean().item())
    assert errors[1] < 1.02 * errors[0]


def test_more_features_than_pairs_are_no_obstacle():
    this = world(side=8, features=200, noise_std=0.05)
    inverter = fitted(this, 100)
    x = this.part(200, 0, "v").images()
    seen = Seen(oracle_of(this.client()).release(x, source=SeededSource(0, "v")))
    assert mse(x, inverter(seen)).mean() < 0.5 * this.prior_mse


def test_constant_features_give_the_mean_image():
    part = world().part(100, 0, "a")
    held = grant(
        Threat(), oracle=oracle_of(torch.nn.Sequential(torch.nn.Flatten(), Zero())), auxiliary=part, selection=part
    )
    x_hat = Ridge().fit(held, seed=0)(Seen(torch.zeros(1, 3, 4)))
    torch.testing.assert_close(x_hat[0], part.images().mean(0), atol=1e-5, rtol=0)


class Zero(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :4] * 0


def test_its_health_is_measured_on_fresh_releases():
    health = fitted(world(), 900).health
    assert health.train_mse == pytest.approx(world().optimal_mse(), rel=0.1)
    assert health.selection_mse == pytest.approx(world().optimal_mse(), rel=0.15)


class Stop(Exception):
    """Enough for now."""


THIS = world(noise_std=0.05)
HELD = grant(
    Threat(),
    oracle=oracle_of(THIS.client()),
    auxiliary=THIS.part(100, 0, "a"),
    selection=THIS.part(40, 0, "s"),
)
VICTIMS = Seen(oracle_of(THIS.client()).release(THIS.part(30, 0, "v").images(), source=SeededSource(0, "v")))


@pytest.fixture(params=["covariance", "gram", "directions"])
def draws(request, monkeypatch) -> list[int]:
    """How many images each question had, of many small questions."""
    asked, draw = [], QueriedPairs.draw

    def counted(pairs, index, **words):
        asked.append(len(index))
        return draw(pairs, index, **words)

    monkeypatch.setattr(ROOM, "CHUNK", 16)
    monkeypatch.setattr(ROOM, "MAX_SIDE", {"gram": 1, "directions": 16, "covariance": 2048}[request.param])
    if request.param == "gram":
        monkeypatch.setattr(QueriedPairs, "is_fresh", False)
    monkeypatch.setattr(QueriedPairs, "draw", counted)
    return asked


def test_stopped_at_every_check_it_repeats_none_and_ends_with_the_same_map(draws, tmp_path):
    told = []
    whole = Ridge().fit(HELD, seed=0, watch=told.append)
    n_small = draws.count(16)

    def stop(check):
        seen.append(check)
        raise Stop

    seen: list = []
    draws.clear()
    for _ in told:
        with pytest.raises(Stop):
            Ridge().fit(HELD, seed=0, watch=stop, state=tmp_path / "fit")
    again = Ridge().fit(HELD, seed=0, watch=stop, state=tmp_path / "fit")
    assert draws.count(16) == n_small
    assert [(check.step, check.score) for check in seen] == [(check.step, check.score) for check in told]
    assert torch.equal(again(VICTIMS), whole(VICTIMS))
    assert again.health == whole.health


def test_it_tells_the_error_that_is_known_so_far(draws):
    told = []
    health = Ridge().fit(HELD, seed=0, watch=told.append).health
    x = HELD.selection.first(40, source=SeededSource(0)).x
    assert told[0].score == pytest.approx(x.var(0, correction=0).mean().item(), rel=1e-5)
    assert told[-1].score == health.selection_mse
    assert [check.step for check in told] == sorted({check.step for check in told})


def test_between_checks_it_can_be_paused(draws, tmp_path, monkeypatch):
    monkeypatch.setattr("splitveil.pausing.UNASKED", 0.0)
    told, whole = [], Ridge().fit(HELD, seed=0)
    draws.clear()

    def ask():
        if len(draws) == 5:  # two that look at shapes and selection images, and three pieces
            raise Stop

    with pytest.raises(Stop), pausing(ask):
        Ridge().fit(HELD, seed=0, watch=told.append, state=tmp_path / "fit")
    assert not told
    n_before = draws.count(16)
    again = Ridge().fit(HELD, seed=0, state=tmp_path / "fit")
    assert n_before == 3
    assert torch.equal(again(VICTIMS), whole(VICTIMS))


def test_a_killed_fit_goes_on_from_what_was_last_kept(draws, tmp_path, monkeypatch):
    """Nobody tells it beforehand: it is as if the process had died in the middle of a question."""
    monkeypatch.setattr("splitveil.fitting.SAVE_EVERY", 0.0)
    whole, ask = Ridge().fit(HELD, seed=0), QueriedPairs.draw
    draws.clear()

    def die(pairs, index, **words):
        if draws.count(16) == 4:
            raise Stop
        return ask(pairs, index, **words)

    with monkeypatch.context() as patch:
        patch.setattr(QueriedPairs, "draw", die)
        with pytest.raises(Stop):
            Ridge().fit(HELD, seed=0, state=tmp_path / "fit")
    draws.clear()
    again = Ridge().fit(HELD, seed=0, state=tmp_path / "fit")
    n_left = draws.count(16)
    draws.clear()
    Ridge().fit(HELD, seed=0)
    assert n_left == draws.count(16) - 4
    assert torch.equal(again(VICTIMS), whole(VICTIMS))
