"""Every grouping × hinge × gate against one class, one group, one member at a time: value and gradient to 1e-10."""

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any, NamedTuple, get_args

import pytest
import torch
from torch import Tensor, nn

from references import entropy as slow
from references.steps import clouds, make_step
from splitveil.regularizers.entropy import (
    GatedPooling,
    Gates,
    Hybrid,
    Information,
    KMeans,
    Linear,
    Log,
    Mixture,
    Plain,
    Share,
    Slots,
    Snr,
    Softplus,
    Surrogate,
    Threshold,
    Unlabeled,
)
from splitveil.regularizers.entropy.groupings.base import Grouping
from splitveil.regularizers.entropy.hinge import Hinge, Pool

N, DIM, CLASSES, STD, STEP = 16, 4, 3, 0.1, 5
FITS = (10, 13, 15)  # seeds of the steps it has fitted: their shares of classes differ
TAU, FLOOR, SHARPNESS, MARGIN = 0.05 * STD**2, 1e-4, 3.0, 0.2
SNR = Snr(sharpness=2.0, level=0.3)
SHARE = Share(slope=8.0, level=0.1)

GROUPINGS: dict[str, Callable[[], Grouping]] = {
    "plain": Plain,
    "unlabeled": Unlabeled,
    "kmeans": lambda: KMeans(n_groups=3),
    "kmeans, batch means": lambda: KMeans(n_groups=3, center="batch"),
    "kmeans, remembered weights": lambda: KMeans(n_groups=3, weights="remembered"),
    "kmeans, blended": lambda: KMeans(n_groups=2, blend=True),
    "mixture": lambda: Mixture(n_groups=2),
    "mixture, batch means": lambda: Mixture(n_groups=2, center="batch"),
    "mixture, full": lambda: Mixture(n_groups=2, covariance="full"),
    "hybrid": lambda: Hybrid(n_groups=2, hidden=5),
    "gated-pooling": lambda: GatedPooling(hidden=5, start="random"),
    "gated-pooling, alone": lambda: GatedPooling(hidden=5, start="random", alone=True),
    "slots": lambda: Slots(n_slots=3, n_rounds=2, slot_dim=8),
}
HINGES: dict[str, Callable[[Pool], Hinge]] = {
    "information": lambda pool: Information(pool=pool),
    "linear": lambda pool: Linear(pool=pool),
    "log": lambda pool: Log(pool=pool, floor=FLOOR),
    "softplus": lambda pool: Softplus(pool=pool, sharpness=SHARPNESS, margin=MARGIN, floor=FLOOR),
}
GATES: dict[str, dict[str, Any]] = {
    "none": {},
    "dimension": {"dimension": True},
    "snr": {"snr": SNR},
    "mass": {"mass_power": 2.0},
    "share": {"share": SHARE},
    "running share": {"share": Share(slope=None, level=None)},
    "every": {"dimension": True, "snr": SNR, "mass_power": 2.0, "share": SHARE},
}
ONE_GROUP = ("plain", "unlabeled", "gated-pooling", "gated-pooling, alone")  # no mass to be dealt out
CASES = [
    (name, gate)
    for name, gate in product(GROUPINGS, GATES)
    if not (gate == "mass" and name in ONE_GROUP) and not ("share" in gate and name == "unlabeled")
]


class Group(NamedTuple):
    """One group of one class: who is in it, and what is known of it beforehand."""

    weight: Tensor
    center: Tensor | None = None
    prior: float | None = None
    remembered: tuple[float, float] | None = None  # variance and trust of a blend


def _world(seed: int = 0) -> tuple[Tensor, Tensor]:
    z, y = clouds(N, DIM, CLASSES - 1, seed=seed, scale=1.0)  # the last class has …
    y[0] = CLASSES - 1  # … one member
    return z, y


@cache
def _prepared(name: str, gate: str) -> Surrogate:
    """A surrogate that has fitted a little and seen an epoch, its learned gates no longer even."""
    surrogate = Surrogate(
        GROUPINGS[name](), gates=Gates(**GATES[gate]), threshold=Threshold(var_threshold=TAU / STD**2)
    )
    for i, seed in enumerate(FITS):
        surrogate.fit(make_step(*_world(seed), n_classes=CLASSES, step=i))
    surrogate.end_epoch(make_step(*_world(), n_classes=CLASSES).progress)
    if surrogate.gates.has_dimension:
        with torch.no_grad():
            for layer in (surrogate.gates.mlp[0], surrogate.gates.mlp[2]):
                assert isinstance(layer, nn.Linear)
                layer.weight.normal_(generator=torch.Generator().manual_seed(0))
    return surrogate


@cache
def _groups(name: str, gate: str) -> dict[int, list[Group]]:
    """Slow memberships of every class; they enter the charge as constants."""
    surrogate = _prepared(name, gate)
    z, y = _world()
    if not surrogate.grouping.uses_labels:
        y = torch.zeros_like(y)
    draw = _draw(surrogate)
    with torch.no_grad():
        return {c: _of_class(surrogate.grouping, c, z[y == c], draw) for c in range(CLASSES) if int((y == c).sum()) > 1}


def _draw(surrogate: Surrogate) -> Tensor | None:
    shape = surrogate.grouping.draw_shape(CLASSES)
    if shape is None:
        return None
    like = torch.zeros(0).double()
    return surrogate.meter.numbers({"groups": shape}, seed=0, key="entropy-charge", step=STEP, like=like)["groups"]


def _of_class(g: Grouping, c: int, mine: Tensor, draw: Tensor | None) -> list[Group]:
    if isinstance(g, Hybrid):
        g = g.clusters
    if isinstance(g, KMeans):
        r = slow.nearest(mine, g.center[c])
        return [_cluster(g, c, k, r[:, k]) for k in range(g.n_groups)]
    if isinstance(g, Mixture):
        cov = torch.diag_embed(g.var[c]) if g.covariance == "diagonal" else g.var[c]
        r = slow.posterior(mine, g.log_weight[c], g.mean[c], cov)
        return [Group(r[:, k], g.mean[c, k] if g.about == "remembered" else None) for k in range(g.n_groups)]
    if isinstance(g, Slots):
        assert draw is not None
        p = dict(g.net.named_parameters())
        r = slow.slot_memberships(mine, draw[c], p, n_rounds=g.n_rounds, n_heads=g.n_heads, sharpen=g.sharpen)
        return [Group(r[:, k]) for k in range(g.n_slots)]
    ones = torch.ones(len(mine), dtype=mine.dtype)
    if isinstance(g, GatedPooling):
        alpha = slow.gated_attention(mine, *g.gate.detach().chunk(2), g.score.detach())
        return [Group(alpha)] if g.alone else [Group(alpha), Group(ones)]
    return [Group(ones)]


def _cluster(g: KMeans, c: int, k: int, members: Tensor) -> Group:
    weight = float(g.weight[c, k])
    trust = min(10 * float(members.sum()) / max(weight * N / CLASSES, 1e-12), 0.99)
    return Group(
        members,
        g.center[c, k] if g.about == "remembered" else None,
        weight if g.weights == "remembered" else None,
        (float(g.var[c, k]), trust) if g.blend else None,
    )


def _class_value(mine: Tensor, groups: list[Group], gates: Gates, form: str, pool: str, *, is_pooling: bool) -> Tensor:
    """What a class is charged: the weighed charges of groups, the widest weighting, or that of the mean spread."""
    there = [group for group in groups if float(group.weight.sum()) > 0]
    mass = [group.prior if group.prior is not None else float(group.weight.sum()) for group in there]
    power = [(m / sum(mass)) ** gates.mass_power for m in mass]
    weights = [p / sum(power) for p in power]
    spreads = [_spread(mine, group, gates) for group in there]
    if is_pooling:
        value = max((_charge(v, gate, form, pool) for v, gate in spreads), key=lambda n: float(n.detach()))
    elif pool == "class":
        mean = sum((w * gate * v for w, (v, gate) in zip(weights, spreads, strict=True)), torch.zeros_like(mine[0]))
        value = _charge(mean, torch.ones_like(mean), form, pool)
    else:
        charges = [w * _charge(v, gate, form, pool) for w, (v, gate) in zip(weights, spreads, strict=True)]
        value = torch.stack(charges).sum()
    if form == "information" and not is_pooling:
        r = torch.stack([group.weight for group in there], 1)
        doubt = torch.stack([slow.entropy(row) for row in r]).mean()
        value = value + (slow.entropy(r.sum(0) / len(mine)) - doubt) / DIM
    return value


def _spread(mine: Tensor, group: Group, gates: Gates) -> tuple[Tensor, Tensor]:
    """Variance of a group, blended where asked, and the gate of each of its dimensions."""
    mean, var = slow.moments(mine, group.weight, group.center)
    gate = torch.ones_like(var)
    if gates.has_dimension:
        layers = [(layer.weight.detach(), layer.bias.detach()) for layer in (gates.mlp[0], gates.mlp[2])]
        gate = gate * slow.dimension_gate(var, layers)
    if gates.snr is not None:
        gate = gate * slow.snr_gate(mean, var, sharpness=2.0, level=0.3, floor=1e-6)
    if group.remembered is not None:
        old, trust = group.remembered
        var = trust * var + (1 - trust) * old
    return var, gate


def _charge(var: Tensor, gate: Tensor, form: str, pool: str) -> Tensor:
    constants = {"noise_var": STD**2, "tau": TAU, "floor": FLOOR, "sharpness": SHARPNESS, "margin": MARGIN}
    if pool != "after_log":
        return slow.curve(form, torch.stack([g * v for g, v in zip(gate, var, strict=True)]).mean(), **constants)
    return torch.stack([g * slow.curve(form, v, **constants) for g, v in zip(gate, var, strict=True)]).mean()


def _class_gate(share: float, gate: str) -> float:
    if "share" not in GATES[gate]:
        return 1.0
    slope, level = 8.0, 0.1
    if gate == "running share":
        labels = [_world(seed)[1].tolist() for seed in FITS]
        slope, level = slow.running_share([[y.count(c) / N for c in set(y)] for y in labels])
    return float(torch.sigmoid(torch.tensor(slope * (share - level), dtype=torch.float64)))


def _expected(z: Tensor, y: Tensor, name: str, gate: str, form: str, pool: str) -> Tensor:
    surrogate = _prepared(name, gate)
    is_pooling = name.startswith("gated-pooling")
    y = y if surrogate.grouping.uses_labels else torch.zeros_like(y)
    total = torch.zeros((), dtype=z.dtype)
    for c, groups in _groups(name, gate).items():
        share = float((y == c).sum()) / N
        value = _class_value(z[y == c], groups, surrogate.gates, form, pool, is_pooling=is_pooling)
        total = total + share * _class_gate(share, gate) * value
    return total


@pytest.mark.parametrize("form", HINGES)
@pytest.mark.parametrize(("name", "gate"), CASES)
def test_a_charge_is_what_a_loop_over_classes_groups_and_members_makes_it(name: str, gate: str, form: str) -> None:
    surrogate = _prepared(name, gate)
    z, y = _world()
    for pool in get_args(Pool):
        surrogate.hinge = HINGES[form](pool)
        ours, loops = z.clone().requires_grad_(), z.clone().requires_grad_()
        loss = surrogate(make_step(ours, y, n_classes=CLASSES, step=STEP)).loss
        (slope,) = torch.autograd.grad(loss, ours)
        want = _expected(loops, y, name, gate, form, pool)
        (want_slope,) = torch.autograd.grad(want, loops)
        torch.testing.assert_close(loss.detach(), want.detach(), rtol=0, atol=1e-10)
        torch.testing.assert_close(slope, want_slope, rtol=0, atol=1e-10)
        assert float(slope.abs().max()) > 1e-6


@pytest.mark.parametrize("form", ["log", "softplus"])
def test_an_adaptive_threshold_is_the_quantile_of_the_spread_that_classes_showed(form: str) -> None:
    surrogate = Surrogate(Plain(), hinge=HINGES[form]("after_log"), threshold=Threshold(quantile=0.4, momentum=0.7))
    running: dict[int, float] = {}
    for i, seed in enumerate(FITS):
        z, y = _world(seed)
        surrogate.fit(make_step(z, y, n_classes=CLASSES, step=i))
        for c in range(CLASSES):
            if len(mine := z[y == c]) > 1:
                spread = float(mine.var(0, unbiased=False).mean())
                running[c] = 0.7 * running[c] + 0.3 * spread if c in running else spread
    tau = float(torch.tensor(list(running.values()), dtype=torch.float64).quantile(0.4))
    z, y = _world()
    want = torch.zeros((), dtype=torch.float64)
    for c in range(CLASSES):
        if len(mine := z[y == c]) > 1:
            var = mine.var(0, unbiased=False)
            constants = {"noise_var": STD**2, "tau": tau, "floor": FLOOR, "sharpness": SHARPNESS, "margin": MARGIN}
            want = want + len(mine) / N * slow.curve(form, var, **constants).mean()
    got = surrogate(make_step(z, y, n_classes=CLASSES, step=STEP)).loss
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
