"""No estimator escapes its own penalty: the contract of every grouping and gate, and proof that it can be broken.

Frozen features, own fitting steps as many as one likes, nats, tolerance 1e-6 or three standard errors:

    (a)  S + I_r ≥ L                    catches a missing I_r, memberships that do not sum to one, hidden gates
    (b)  one weighted group: charged ≥ P                         catches the collapse of attention onto few members
    (c)  L on fresh samples ≥ the known I(x; z_sent | y)         catches overfitting sold as a bound
    (d)  learned gates: mean opening ≥ 0.9 of its start          catches gates that close themselves

(c) is a statement about densities: any q has held-out L ≥ the truth. Of `unlabeled` it is that of the whole batch, held
to I(x; z_sent) itself; of a weighting, the Gaussian of the weighted class, and since what it charges is no mixture's
cost, that is held to the truth on fresh members by itself. `staged` is held to all of it in both stages.
"""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from references.steps import make_step
from splitveil.mixtures import Mixture, leak_nats, log_density
from splitveil.regularizers import entropy
from splitveil.regularizers.base import Regularizer
from splitveil.regularizers.entropy import Fitting, Gates, KMeans, MixturePrior, Share, Slots, Snr, Staged, Surrogate
from splitveil.regularizers.entropy.covariance import Correlated
from splitveil.regularizers.entropy.information import density
from splitveil.regularizers.entropy.members import assemble
from splitveil.regularizers.entropy.moments import moments

DIM, CLASSES, STD, N = 8, 3, 0.1, 96
SPREAD = 0.15
N_FITS = 80

EVERY_GATE = {"dimension": True, "snr": Snr(), "mass_power": 2.0, "share": Share()}


Held = Surrogate | Staged


def _fast(surrogate: Held) -> Held:
    """The same surrogate, fitted in every step and hard, so that a cheat has time to show."""
    if isinstance(surrogate, Staged):
        for stage in (surrogate.first, surrogate.second):
            assert isinstance(stage, Surrogate)
            _fast(stage)
        return surrogate
    surrogate.fitting = Fitting(rule=surrogate.fitting.rule, lr=0.02)
    surrogate.adam.lr = 0.02
    surrogate.meter.gauge_every = 1
    return surrogate


HONEST: dict[str, Callable[[], Held]] = {
    "plain": entropy.plain,
    "unlabeled": entropy.unlabeled,
    "kmeans": lambda: entropy.kmeans(n_groups=3),
    "kmeans, batch means": lambda: entropy.kmeans(n_groups=3, center="batch"),
    "mixture": lambda: entropy.mixture(n_groups=3),
    "mixture, full": lambda: entropy.mixture(n_groups=2, covariance="full"),
    "hybrid": lambda: entropy.hybrid(n_groups=3),
    "gated-pooling": lambda: entropy.gated_pooling(hidden=16),
    "slots": lambda: entropy.slots(n_slots=4, slot_dim=16),
    "slots, ascending": lambda: entropy.slots(n_slots=4, slot_dim=16, fit="ascent"),
    "slots, every gate": lambda: Surrogate(Slots(n_slots=4, slot_dim=16), gates=Gates(**EVERY_GATE)),
    "kmeans, every gate": lambda: Surrogate(KMeans(n_groups=3), gates=Gates(**EVERY_GATE)),
    "staged, pooling": lambda: entropy.staged(at_epoch=2, n_slots=4, slot_dim=16, hidden=16),
    "staged, slots": lambda: entropy.staged(at_epoch=1, n_slots=4, slot_dim=16, hidden=16),
}
LITERAL: dict[str, Callable[[], Held]] = {
    "gated-pooling": entropy.notes_gated_pooling,
    "slots": lambda: entropy.notes_slots(n_slots=4, silent_calls=0),
}


def _modes() -> Tensor:
    rng = torch.Generator().manual_seed(3)
    return torch.rand(CLASSES, 2, DIM, generator=rng, dtype=torch.float64)


def _world(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """z | y is an even mixture of two Gaussians about `_modes()`, with variance SPREAD² in every dimension."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % CLASSES
    mode = torch.randint(2, (n,), generator=rng)
    return _modes()[y, mode] + SPREAD * torch.randn(n, DIM, generator=rng, dtype=torch.float64), y


def _fitted(regularizer: Regularizer, *, n_fits: int = N_FITS) -> Regularizer:
    """After its own fitting steps on frozen features, in epochs 0 and 1."""
    z, y = _world(N, seed=0)
    for i in range(n_fits):
        step = make_step(z, y, n_classes=CLASSES, step=i, epoch=int(i > n_fits // 2), noise_std=STD)
        regularizer.fit(step)
        if i == n_fits // 2:
            regularizer.end_epoch(step.progress)
    return regularizer


def _gauges(regularizer: Regularizer, *, n: int) -> dict[str, Tensor]:
    """Gauges of `n` steps on the same features, each with its own noise."""
    z, y = _world(N, seed=0)
    steps = [make_step(z, y, n_classes=CLASSES, step=1000 + i, epoch=1, noise_std=STD) for i in range(n)]
    shown = [regularizer(step).gauges for step in steps]
    return {name: torch.stack([s[name].double() for s in shown]) for name in shown[0]}


def _is_at_least(left: Tensor, right: Tensor) -> bool:
    """left ≥ right on average, within 1e-6 and three standard errors of their difference."""
    gap = left - right
    error = float(gap.std()) / len(gap) ** 0.5
    return float(gap.mean()) >= -1e-6 - 3 * error


def _violations(make: Callable[[], Held]) -> set[str]:
    start = _gauges(_fitted(_fast(make()), n_fits=1), n=8)
    end = _gauges(_fitted(_fast(make())), n=40)
    found = set()
    if not _is_at_least(end["charged"], end["L"]):
        found.add("a")
    if "gap" in end and not bool((end["charged"] >= end["P"] - 1e-6).all()):
        found.add("b")
    if "gate_dimension" in end and float(end["gate_dimension"].mean()) < 0.9 * float(start["gate_dimension"].mean()):
        found.add("d")
    return found


@pytest.mark.parametrize("name", HONEST)
def test_honest_surrogates_keep_a_b_and_d(name: str) -> None:
    assert _violations(HONEST[name]) == set()


@pytest.mark.parametrize("name", LITERAL)
def test_the_notes_break_the_contract(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = _violations(LITERAL[name])
    assert found


def test_the_notes_pooling_charges_less_than_the_plain_spread_and_its_attention_collapses() -> None:
    with pytest.warns(UserWarning, match="report little"):
        literal = _fast(entropy.notes_gated_pooling())
    collapsed, ours = _gauges(_fitted(literal), n=4), _gauges(_fitted(_fast(entropy.gated_pooling())), n=4)
    assert float((collapsed["S"] / collapsed["P"]).mean()) < 0.8
    assert float(collapsed["effective_members"].mean()) < 0.5
    assert float((ours["charged"] / ours["P"]).min()) >= 1


def test_the_notes_gates_close_themselves_and_ours_open() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        literal = _fast(entropy.notes_slots(n_slots=4, silent_calls=0))
    ours = _fast(HONEST["slots, every gate"]())
    shut, opened = (float(_gauges(_fitted(s), n=4)["gate_dimension"].mean()) for s in (literal, ours))
    assert shut < 0.2
    assert opened > 0.5


def _truth(z: Tensor, y: Tensor, noise: Tensor, *, is_labeled: bool = True) -> Tensor:
    """log N(z̃; z, σ²) − log p(z̃ | y) of each sample under the true density: its mean is I(x; z_sent | y).

    Without labels p(z̃) is the mixture of all classes, and the mean is I(x; z_sent).
    """
    mode, label = (_modes(), y) if is_labeled else (_modes().view(1, -1, DIM), torch.zeros_like(y))
    even = torch.full(mode.shape[:2], 1 / mode.shape[1], dtype=torch.float64).log()
    true = Mixture(even, mode, torch.full(mode.shape, SPREAD**2, dtype=torch.float64))
    return leak_nats(z, label, true, noise, noise_var=STD**2)


def _q(surrogate: Surrogate) -> Mixture:
    """The density the groups of the fitted features make; of a weighting, that of its own Gaussian."""
    z, y = _world(N, seed=0)
    is_labeled = surrogate.grouping.uses_labels
    n_classes = CLASSES if is_labeled else 1
    members = assemble(z, y if is_labeled else torch.zeros_like(y), n_classes=n_classes, noise_var=STD**2)
    shape = surrogate.grouping.draw_shape(n_classes)
    draw = None if shape is None else torch.randn(shape, generator=torch.Generator().manual_seed(0)).double()
    with torch.no_grad():
        groups = surrogate.grouping(members, draw)
        found = moments(
            z, groups.weight, groups.index, n_rows=n_classes, n_groups=groups.n_groups, center=groups.center
        )
        if groups.kind == "weighting":
            return Mixture(torch.zeros(n_classes, 1).double(), found.mean[:, :1], found.var[:, :1])
        return density(members, found)


def _charged_stage(surrogate: Regularizer) -> Surrogate:
    """The surrogate that is charged in epoch 1."""
    if isinstance(surrogate, Staged):
        surrogate = surrogate.first if surrogate.at_epoch > 1 else surrogate.second
    assert isinstance(surrogate, Surrogate)
    return surrogate


def _fresh(n: int = 3000) -> tuple[Tensor, Tensor, Tensor]:
    z, y = _world(n, seed=1)
    return z, y, torch.randn(z.shape, generator=torch.Generator().manual_seed(2)).double()


@pytest.mark.parametrize("name", HONEST)
def test_c_held_out_leak_is_at_least_the_known_information(name: str) -> None:
    surrogate = _charged_stage(_fitted(_fast(HONEST[name]())))
    is_labeled = surrogate.grouping.uses_labels
    z, y, noise = _fresh()
    q = _q(surrogate)
    torch.testing.assert_close(q.log_weight.exp().sum(-1), torch.ones(len(q.mean)).double())  # a density
    held_out = leak_nats(z, y if is_labeled else torch.zeros_like(y), q, noise, noise_var=STD**2)
    truth = _truth(z, y, noise, is_labeled=is_labeled)
    assert _is_at_least(held_out, truth)
    assert float(held_out.mean()) < 3 * float(truth.mean())  # and says something


@pytest.mark.parametrize("name", ["plain", "gated-pooling", "staged, pooling"])
def test_c_what_one_group_is_charged_on_fresh_members_is_at_least_the_known_information(name: str) -> None:
    """One group's charge is at least P, and a Gaussian is the worst density of its variance."""
    surrogate = _fitted(_fast(HONEST[name]()))
    z, y, noise = _fresh()
    charged = surrogate(make_step(z, y, n_classes=CLASSES, step=0, epoch=1, noise_std=STD)).gauges["charged"]
    truth = _truth(z, y, noise)
    assert float(charged) >= float(truth.mean()) - 3 * float(truth.std()) / len(truth) ** 0.5


def test_c_without_labels_more_is_known_of_an_image_than_beside_its_class() -> None:
    """The truths that `unlabeled` and the others are held to differ by what z_sent tells of the class."""
    z, y, noise = _fresh()
    gap = _truth(z, y, noise, is_labeled=False) - _truth(z, y, noise)
    error = float(gap.std()) / len(gap) ** 0.5
    assert 3 * error < float(gap.mean()) < float(torch.tensor(CLASSES).log()) + 3 * error


def test_c_the_mixture_prior_is_held_to_it_too_and_comes_close() -> None:
    prior = MixturePrior(n_groups=2)
    for i in range(200):
        z, y = _world(N, seed=100 + i)
        prior.fit(make_step(z, y, n_classes=CLASSES, step=i, noise_std=STD))
    z, y = _world(3000, seed=1)
    noise = torch.randn(z.shape, generator=torch.Generator().manual_seed(2)).double()
    q = prior.mixture()
    held_out = -0.5 * (noise.square() + torch.log(torch.tensor(2 * torch.pi * STD**2))).sum(1)
    held_out = held_out - log_density(z + STD * noise, y, q)
    truth = _truth(z, y, noise)
    assert _is_at_least(held_out, truth)
    assert float(held_out.mean()) < float(truth.mean()) + 0.6


def test_in_sample_values_flatter_so_the_contract_is_needed() -> None:
    """Many groups on few members: S alone and even in-sample L fall below the truth that held-out L respects."""
    surrogate = _fitted(_fast(entropy.kmeans(n_groups=12, center="batch")))
    assert isinstance(surrogate, Surrogate)
    end = _gauges(surrogate, n=20)
    z, y = _world(3000, seed=1)
    noise = torch.randn(z.shape, generator=torch.Generator().manual_seed(2)).double()
    truth = float(_truth(z, y, noise).mean())
    assert float(end["S"].mean()) < 0.7 * truth
    assert float(end["L"].mean()) < truth
    assert float(leak_nats(z, y, _q(surrogate), noise, noise_var=STD**2).mean()) > truth


def _gaussians(correlated: Correlated) -> list[torch.distributions.MultivariateNormal]:
    """The low-rank plus diagonal Gaussian of every class of the fitted features, noise included."""
    z, y = _world(N, seed=0)
    made = []
    for c in range(CLASSES):
        mine = z[y == c]
        gap = mine - mine.mean(0)
        u = correlated.directions[c]
        along = gap @ u
        beside = (gap - along @ u.T).square().mean(0)
        cov = u @ torch.diag(along.square().mean(0)) @ u.T + torch.diag(beside) + STD**2 * torch.eye(DIM)
        made.append(torch.distributions.MultivariateNormal(mine.mean(0), cov))
    return made


CHANNEL = torch.distributions.MultivariateNormal(torch.zeros(DIM).double(), STD**2 * torch.eye(DIM).double())


def test_correlated_spread_is_the_cross_entropy_it_claims_to_be() -> None:
    """(a) for the low-rank plus diagonal form: charged equals L of its own Gaussian, in expectation over noise."""
    correlated = Correlated(rank=2, gauge_every=1)
    _fitted(correlated, n_fits=4)
    z, y = _world(N, seed=0)
    charged = float(correlated(make_step(z, y, n_classes=CLASSES, step=0, noise_std=STD)).gauges["charged"])
    total = 0.0
    for c, q in enumerate(_gaussians(correlated)):
        mine = z[y == c]
        draws = mine + STD * torch.randn(4000, *mine.shape, generator=torch.Generator().manual_seed(c)).double()
        total += len(mine) / N * float((CHANNEL.log_prob(draws - mine) - q.log_prob(draws)).mean())
    assert charged == pytest.approx(total, rel=2e-3)


def test_c_correlated_spread_is_held_to_it_too() -> None:
    correlated = Correlated(rank=2, gauge_every=1)
    _fitted(correlated, n_fits=4)
    z, y, noise = _fresh()
    each = torch.stack([q.log_prob(z + STD * noise) for q in _gaussians(correlated)], 1)
    held_out = CHANNEL.log_prob(STD * noise) - each.gather(1, y.unsqueeze(1))[:, 0]
    assert _is_at_least(held_out, _truth(z, y, noise))
