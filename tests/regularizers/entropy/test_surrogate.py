"""The pipeline against one class, one group, one member at a time, with the gradient through memberships or without.

Every grouping × hinge × gate is held to the same loops in test_references.py.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from references import entropy as slow
from references.steps import clouds, make_step
from splitveil.regularizers.entropy import (
    Charging,
    Fitting,
    GatedPooling,
    KMeans,
    Log,
    Mixture,
    Plain,
    Slots,
    Surrogate,
    Unlabeled,
)
from splitveil.regularizers.entropy.groupings.base import Grouping

N, DIM, CLASSES, STD = 26, 6, 4, 0.1


def _world(seed: int = 0) -> tuple[Tensor, Tensor]:
    z, y = clouds(N, DIM, CLASSES - 1, seed=seed)  # the last class is absent …
    y[0] = CLASSES - 1  # … but for one member
    return z, y


def _prepare(grouping: Grouping, **settings: Any) -> Surrogate:
    """A surrogate that has seen an epoch and fitted a little."""
    surrogate = Surrogate(grouping, **settings)
    for i in range(4):
        surrogate.fit(make_step(*_world(10 + i), n_classes=CLASSES, step=i))
    surrogate.end_epoch(make_step(*_world(), n_classes=CLASSES).progress)
    return surrogate


def _memberships(surrogate: Surrogate, draw: Tensor | None) -> Callable[[int, Tensor], tuple[Tensor, Tensor | None]]:
    """Slow memberships and centers of a class under the surrogate's own state."""
    g = surrogate.grouping

    def of_class(c: int, mine: Tensor) -> tuple[Tensor, Tensor | None]:
        if isinstance(g, KMeans):
            return slow.nearest(mine, g.center[c]), (g.center[c] if g.about == "remembered" else None)
        if isinstance(g, Mixture):
            cov = torch.diag_embed(g.var[c]) if g.covariance == "diagonal" else g.var[c]
            r = slow.posterior(mine, g.log_weight[c], g.mean[c], cov)
            return r, (g.mean[c] if g.about == "remembered" else None)
        if isinstance(g, Slots):
            assert draw is not None
            p = dict(g.net.named_parameters())
            return slow.slot_memberships(
                mine, draw[c], p, n_rounds=g.n_rounds, n_heads=g.n_heads, sharpen=g.sharpen
            ), None
        return torch.ones(len(mine), 1, dtype=mine.dtype), None

    return of_class


def _draw_of(surrogate: Surrogate, n_rows: int) -> Tensor | None:
    shape = surrogate.grouping.draw_shape(n_rows)
    if shape is None:
        return None
    drawn = surrogate.meter.numbers(
        {"groups": shape}, seed=0, key="entropy-charge", step=5, like=torch.zeros(0).double()
    )
    return drawn["groups"].clone()


def _compare(surrogate: Surrogate, want: Callable[[Tensor, Tensor], Tensor], *, step: int = 5) -> None:
    z, y = _world()
    fast_z, slow_z = z.clone().requires_grad_(), z.clone().requires_grad_()
    penalty = surrogate(make_step(fast_z, y, n_classes=CLASSES, step=step))
    penalty.loss.backward()
    expected = want(slow_z, y)
    expected.backward()
    assert fast_z.grad is not None
    assert slow_z.grad is not None
    torch.testing.assert_close(penalty.loss.detach(), expected.detach(), rtol=0, atol=1e-10)
    torch.testing.assert_close(fast_z.grad, slow_z.grad, rtol=0, atol=1e-10)
    assert float(fast_z.grad.abs().max()) > 0


def _information(var: Tensor) -> Tensor:
    return (0.5 * torch.log(1 + var / STD**2)).mean()


GROUPINGS: dict[str, Callable[[], Grouping]] = {
    "plain": Plain,
    "kmeans": lambda: KMeans(n_groups=3),
    "kmeans-batch": lambda: KMeans(n_groups=3, center="batch"),
    "mixture": lambda: Mixture(n_groups=2),
    "mixture-batch": lambda: Mixture(n_groups=2, center="batch"),
    "mixture-full": lambda: Mixture(n_groups=2, covariance="full"),
    "slots": lambda: Slots(n_slots=3, n_rounds=2, slot_dim=8),
}


@pytest.mark.parametrize("through", [False, True])
@pytest.mark.parametrize("name", GROUPINGS)
def test_every_partition_charges_what_a_loop_over_classes_does(name: str, through: bool) -> None:
    surrogate = _prepare(GROUPINGS[name](), charging=Charging(through=through))
    memberships = _memberships(surrogate, _draw_of(surrogate, CLASSES))

    def value(c: int, mine: Tensor) -> Tensor:
        r, center = memberships(c, mine)
        r = r if through else r.detach()
        return slow.class_value(
            mine, r, center, lambda v: (0.5 * torch.log(1 + v / STD**2)).mean(), adds_membership=True
        )

    _compare(surrogate, lambda z, y: slow.penalty(z, y, CLASSES, value))


def test_unlabeled_charges_the_whole_batch_as_one_class() -> None:
    surrogate = Surrogate(Unlabeled())

    def want(z: Tensor, y: Tensor) -> Tensor:
        _, var = slow.moments(z, torch.ones(len(z)).double())
        return _information(var)

    _compare(surrogate, want)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("through", [False, True])
def test_gated_pooling_charges_the_wider_of_its_weightings(through: bool, alone: bool) -> None:
    surrogate = _prepare(
        GatedPooling(hidden=5, alone=alone), charging=Charging(through=through), fitting=Fitting(lr=0.1)
    )
    pooling = surrogate.grouping
    assert isinstance(pooling, GatedPooling)
    v, u = pooling.gate.detach().chunk(2)

    def value(c: int, mine: Tensor) -> Tensor:
        alpha = slow.gated_attention(mine, v, u, pooling.score.detach())
        alpha = alpha if through else alpha.detach()
        weightings = [alpha] if alone else [alpha, torch.ones_like(alpha)]
        nats = [_information(slow.moments(mine, w)[1]) for w in weightings]
        return max(nats, key=lambda n: float(n.detach()))

    _compare(surrogate, lambda z, y: slow.penalty(z, y, CLASSES, value))


def test_the_published_blend_mixes_remembered_variances_in() -> None:
    surrogate = _prepare(
        KMeans(n_groups=2, blend=True),
        hinge=Log(pool="before_log", floor=0.01),
        charging=Charging(account="spread", class_weight="present"),
    )
    grouping = surrogate.grouping
    assert isinstance(grouping, KMeans)

    def want(z: Tensor, y: Tensor) -> Tensor:
        total, n = torch.zeros((), dtype=z.dtype), 0
        for c in range(CLASSES):
            mine = z[y == c]
            if len(mine) < 2:
                continue
            n += 1
            r = slow.nearest(mine, grouping.center[c])
            for k in range(2):
                count = float(r[:, k].sum())
                if count > 0:
                    _, var = slow.moments(mine, r[:, k], grouping.center[c, k])
                    trust = min(10 * count / (float(grouping.weight[c, k]) * N / CLASSES), 0.99)
                    blended = trust * var.mean() + (1 - trust) * grouping.var[c, k]
                    tau = 0.125 * STD**2
                    rise = torch.log(blended + 0.01) - math.log(tau + 0.01)
                    total = total + count / len(mine) * torch.clamp(rise, min=0)
        return total / n

    _compare(surrogate, want)
