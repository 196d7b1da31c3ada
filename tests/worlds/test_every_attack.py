"""proved bound ≤ optimum ≤ attack: every attack of `full`, at next to no budget, in worlds that nobody has picked.

The optimum is paired with the attack: both answer the same releases of the same victims. An attack is below it where
the mean of the difference is, by 3 standard errors: an attack as good as the optimum is called so once in 700 worlds.
A bound, as the end of its interval that claims less, stands below the optimum's closed form, and below the errors that
were measured, by the same rule.

Every side of a world is drawn by itself, from a list that is shuffled for each attack: what is drawn first, the first
of every list, is another world for each.
"""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn

from splitveil.attacks import DecoderAttack, Inverter, Retrieval, Ridge, Seen, grant, oracle_of
from splitveil.bounds import Bound, Probing, channel_of, encoded, known_prior, look, parts_of, two_point
from splitveil.evaluation import Trial
from splitveil.evaluation.flags import below_bound
from splitveil.fitting import Plan
from splitveil.metrics import interval, mse
from splitveil.randomness import SeededSource, derive
from worlds.attacks import brief_trials, enough
from worlds.linear_gaussian import LinearGaussian, world

N_OWN, N_SELECTION, N_VICTIMS = 200, 40, 400
EXACT = 1e-5  # float32: with the world's own prior, van Trees is an equality

TRIALS = brief_trials()
every_attack = pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.name)

SIDES: dict[str, list] = {
    "side": [11, 12, 13],  # 11: what SSIM's window needs
    "features": list(range(1, 61)),
    "noise_std": [0.02 * 50 ** (k / 40) for k in range(41)],  # to 1
    "length": [0.3 * 27 ** (k / 20) for k in range(21)],  # to 8: from nearly white to nearly one value
    "channels": [1, 3],
    "seed": list(range(1000)),
}


def worlds(*key: str) -> st.SearchStrategy[LinearGaussian]:
    """Worlds that nobody has picked."""

    def one_of(name: str, values: list) -> st.SearchStrategy:
        return st.sampled_from(random.Random(derive(0, name, *key)).sample(values, len(values)))

    return st.builds(world, **{name: one_of(name, values) for name, values in SIDES.items()})


def drawn(n: int) -> settings:
    return settings(max_examples=n, deadline=None, derandomize=True, phases=[Phase.generate])


def fitted(trial: Trial, this: LinearGaussian, n_own: int) -> Inverter:
    auxiliary, selection = this.part(n_own, 0, "auxiliary"), this.part(N_SELECTION, 0, "selection")
    torch.manual_seed(0)
    head = nn.Linear(len(this.matrix), 2)
    oracle = oracle_of(this.client())
    known = grant(trial.threat, oracle=oracle, auxiliary=auxiliary, selection=selection, n_classes=2, head=head)
    return trial.attack.fit(known, seed=0)


def errors(trial: Trial, this: LinearGaussian, leak: float, n_own: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the attack, and of the posterior mean on the same releases of the same victims.

    Through a leak the attack is handed releases that lack so much of their noise's variance; the optimum is not.
    """
    victims = this.part(N_VICTIMS, 0, "victims")
    x, labels = victims.images(), victims.labels if trial.threat.label_known else None
    quiet = replace(this, noise_std=this.noise_std * (1 - leak) ** 0.5)
    heard, sent = (
        Seen(oracle_of(each.client()).release(x, source=SeededSource(1), releases=trial.threat.releases), labels)
        for each in (quiet, this)
    )
    return mse(x, fitted(trial, this, n_own)(heard)), mse(x, this.best_attack(sent))


def floors(this: LinearGaussian, releases: int) -> list[Bound]:
    """The proved bounds on the error of images as they are: all there are, says `tests/bounds/test_worlds.py`."""
    client, parts = this.client(), parts_of(this.images(n=200, n_victims=N_VICTIMS))
    exact = look(client, parts, Probing(images=4, directions=None))
    prior = known_prior(exact, torch.linalg.inv(this.covariance), releases=releases)
    return [two_point(encoded(channel_of(client), parts), parts.read, releases=releases), prior]


def is_below(found: torch.Tensor, best: torch.Tensor | float) -> bool:
    gap = found - best
    return bool(gap.mean() < -3 * gap.std() / len(gap) ** 0.5)


def check(trial: Trial, this: LinearGaussian, *, leak: float = 0.0, n_own: int = N_OWN) -> None:
    """All of it, in one world."""
    releases = trial.threat.releases
    found, best = errors(trial, this, leak, n_own)
    assert not is_below(found, best), "an attack below the optimum"
    for bound in floors(this, releases):
        assert bound.is_about_attacks
        assert bound.safe <= this.optimal_mse(releases) * (1 + EXACT)
        assert not is_below(best, bound.safe)
        assert not is_below(found, bound.safe)


@every_attack
@drawn(2)
@given(data=st.data())
def test_no_attack_is_below_the_optimum_nor_the_optimum_below_a_bound(trial, data):
    check(trial, data.draw(worlds(trial.name)))


@pytest.mark.slow
@every_attack
@drawn(4)
@given(data=st.data())
def test_in_more_worlds(trial, data):
    check(trial, data.draw(worlds(trial.name, "more")))


@pytest.mark.parametrize("attack", [Ridge(), Retrieval(k=8)], ids=lambda attack: attack.name)
@drawn(8)
@given(data=st.data())
def test_what_is_fitted_at_once_is_tried_in_many_worlds(attack, data):
    trial = next(trial for trial in TRIALS if trial.attack == attack)
    check(trial, data.draw(worlds(trial.name, "at once")))


FITTED = DecoderAttack("conv", batch=64, plan=Plan(steps=150, lr=4e-3, ema=0.97, check_every=50))


@pytest.mark.parametrize("attack", [Ridge(), FITTED], ids=lambda attack: attack.name)
def test_an_attack_through_a_leak_is_caught(attack):
    """Handed releases with a quarter of the variance, and none the wiser, it is below the optimum; without, above."""
    trial, this = Trial(attack, enough(attack)), world(side=11, features=30, noise_std=0.3)
    check(trial, this, n_own=2000)
    with pytest.raises(AssertionError, match="an attack below the optimum"):
        check(trial, this, leak=0.75, n_own=2000)


@pytest.mark.parametrize("share", [0.5, 0.98])
def test_who_hears_less_noise_than_it_says_is_found_out(share):
    """The posterior mean of a client with half of the noise, or most of it, is below the optimum with all of it."""
    this = world(side=11, features=60, noise_std=0.3)
    quiet = world(side=11, features=60, noise_std=0.3 * share)
    x = this.part(N_VICTIMS, 0, "victims").images()
    heard = [Seen(oracle_of(each.client()).release(x, source=SeededSource(1))) for each in (this, quiet)]
    best, cheated = (mse(x, each.best_attack(seen)) for each, seen in zip((this, quiet), heard, strict=True))
    assert is_below(cheated, best)
    assert not is_below(best, cheated)
    flag = below_bound(interval(cheated), floors(this, 1))
    assert (flag is not None) is (share == 0.5)  # unpaired, two percent are within what 400 victims leave open
