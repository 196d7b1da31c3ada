"""What groupings remember and learn."""

import pytest
import torch

from references.steps import clouds, make_step
from splitveil.check import UsageError
from splitveil.regularizers import entropy
from splitveil.regularizers.entropy import (
    Charging,
    Fitting,
    GatedPooling,
    Gating,
    Hybrid,
    KMeans,
    Mixture,
    Parts,
    Slots,
    Snr,
    Surrogate,
)
from splitveil.regularizers.entropy.groupings.gated_pooling import segment_softmax
from splitveil.regularizers.entropy.information import worst_gap
from splitveil.regularizers.entropy.members import assemble
from splitveil.regularizers.entropy.moments import moments

DIM, CLASSES = 5, 3


def _after_an_epoch(surrogate: Surrogate, *, scale: float = 0.3) -> Surrogate:
    z, y = clouds(120, DIM, CLASSES, scale=scale)
    step = make_step(z, y, n_classes=CLASSES)
    surrogate.fit(step)
    surrogate.end_epoch(step.progress)
    return surrogate


def test_kmeans_is_plain_until_its_first_refit_or_silent_if_told() -> None:
    step = make_step(*clouds(40, DIM, CLASSES), n_classes=CLASSES)
    plain = float(entropy.plain()(step).loss)
    assert float(Surrogate(KMeans())(step).loss) == plain
    assert float(Surrogate(KMeans(until_ready="silent"))(step).loss) == 0


def test_finer_groups_charge_less_spread_and_more_membership() -> None:
    step = make_step(*clouds(120, DIM, CLASSES, scale=0.05), n_classes=CLASSES, step=16)
    shown = [_after_an_epoch(entropy.kmeans(n_groups=k), scale=0.05)(step).gauges for k in (1, 2, 4)]
    spread, added = [float(g["S"]) for g in shown], [float(g["I_r"]) for g in shown]
    assert spread == sorted(spread, reverse=True)
    assert added == sorted(added)
    assert added[0] == 0


def test_a_class_the_reservoir_never_held_shares_the_mean_center() -> None:
    z, y = clouds(60, DIM, 2)
    surrogate = entropy.kmeans(n_groups=2)
    step = make_step(z, y, n_classes=3)
    surrogate.fit(step)
    surrogate.end_epoch(step.progress)
    grouping = surrogate.grouping
    assert isinstance(grouping, KMeans)
    torch.testing.assert_close(grouping.center[2, 0], grouping.center[:2].mean((0, 1)))
    assert grouping.weight[2].tolist() == [0.5, 0.5]


def test_groups_far_wider_than_their_class_are_seeded_again() -> None:
    rng = torch.Generator().manual_seed(0)
    near = 0.01 * torch.randn(60, 1, generator=rng, dtype=torch.float64)
    wide = torch.cat([near, near + 0.3, torch.tensor([[8.0], [12.0]]).double().repeat(3, 1)])
    y = torch.zeros(len(wide), dtype=torch.long)
    bad = torch.tensor([[[0.0], [0.3], [10.0]]]).double()
    spreads = []
    for widest in (None, 2.0):
        surrogate = Surrogate(KMeans(n_groups=3, widest=widest))
        step = make_step(wide, y, n_classes=1)
        surrogate.fit(step)
        grouping = surrogate.grouping
        assert isinstance(grouping, KMeans)
        grouping.center.copy_(bad)
        grouping._is_ready = True
        surrogate.end_epoch(step.progress)
        spreads.append(float((grouping.weight * grouping.var).sum()))
    assert spreads[1] < 0.5 * spreads[0]


def test_a_warm_refit_keeps_centers_where_they_belong() -> None:
    surrogate = _after_an_epoch(entropy.kmeans(n_groups=2))
    grouping = surrogate.grouping
    assert isinstance(grouping, KMeans)
    before = grouping.center.clone()
    _after_an_epoch(surrogate)
    torch.testing.assert_close(grouping.center, before, rtol=0, atol=1e-6)


def test_the_mixture_remembers_variances_with_the_noise_in_them() -> None:
    grouping = _after_an_epoch(entropy.mixture(n_groups=2)).grouping
    assert isinstance(grouping, Mixture)
    assert float(grouping.var.min()) >= 0.01 * (1 - 1e-9)
    torch.testing.assert_close(grouping.log_weight.exp().sum(-1), torch.ones(CLASSES).double())


def test_pooling_starts_uniform_and_climbs_towards_the_worst_weighting() -> None:
    surrogate = Surrogate(GatedPooling(hidden=16), fitting=Fitting(lr=0.05), gauge_every=1)
    z, y = clouds(60, DIM, CLASSES)
    first = surrogate(make_step(z, y, n_classes=CLASSES)).gauges
    assert float(first["S"]) == pytest.approx(float(first["P"]))
    for i in range(150):
        surrogate.fit(make_step(z, y, n_classes=CLASSES, step=i))
    last = surrogate(make_step(z, y, n_classes=CLASSES)).gauges
    assert float(last["S"]) > float(first["S"])
    assert float(last["gap"]) < float(first["gap"])
    assert float(last["S"]) <= float(first["S"]) + 0.5 * float(first["gap"]) + 1e-9


def test_no_weighting_beats_the_gap() -> None:
    """S of the worst weighting found by ascent on the weights themselves stays below S + g/2."""
    z, y = clouds(20, 3, 1)
    members = assemble(z, y, n_classes=1, noise_var=0.01)
    logits = torch.zeros(20, dtype=torch.float64, requires_grad=True)
    bounds, spreads = [], []
    for _ in range(300):
        found = moments(z, logits.softmax(0)[:, None], y[:, None], n_rows=1, n_groups=1)
        nats = 0.5 * torch.log1p(found.var / 0.01).sum()
        bounds.append(float((nats + 0.5 * worst_gap(members, found)).detach()))
        spreads.append(float(nats.detach()))
        (slope,) = torch.autograd.grad(nats, logits)
        with torch.no_grad():
            logits += 5.0 * slope
    assert max(spreads) <= min(bounds) + 1e-9
    assert bounds[-1] - spreads[-1] < 0.5 * (bounds[0] - spreads[0])


def test_softmax_by_row_sums_to_one_and_does_not_overflow() -> None:
    alpha = segment_softmax(torch.tensor([1000.0, 1001.0, -500.0]), torch.tensor([0, 0, 2]), 3)
    torch.testing.assert_close(alpha, torch.tensor([0.26894, 0.73106, 1.0]), atol=1e-5, rtol=0)


def test_attention_seeds_the_clusters_of_the_hybrid() -> None:
    surrogate = _after_an_epoch(entropy.hybrid(n_groups=2))
    grouping = surrogate.grouping
    assert isinstance(grouping, Hybrid)
    assert int(grouping.clusters.n_refits) == 1
    reference = _after_an_epoch(entropy.kmeans(n_groups=2)).grouping
    assert isinstance(reference, KMeans)
    ours = float((grouping.clusters.weight * grouping.clusters.var).sum())
    assert ours == pytest.approx(float((reference.weight * reference.var).sum()), rel=0.2)


def test_likelihood_makes_slots_find_the_modes_of_a_class() -> None:
    """Two far modes a class: fitted slots leak less than one Gaussian, and S + I_r falls with L."""
    z, y = clouds(90, DIM, CLASSES, scale=0.05)
    surrogate = Surrogate(Slots(n_slots=4, slot_dim=16), fitting=Fitting(lr=0.01), gauge_every=1)
    for i in range(200):
        surrogate.fit(make_step(z, y, n_classes=CLASSES, step=i))
    shown = surrogate(make_step(z, y, n_classes=CLASSES, step=1)).gauges
    assert float(shown["L"]) < 0.8 * float(shown["P"])
    assert float(shown["charged"]) < 0.9 * float(shown["P"])


def test_a_slot_width_that_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(UsageError, match="multiple of n_heads"):
        Surrogate(Slots(slot_dim=10))(make_step(*clouds(8, DIM, 2), n_classes=2))


def test_staged_charges_pooling_first_and_slots_later() -> None:
    staged = entropy.staged(at_epoch=2, n_slots=3)
    z, y = clouds(24, 8, CLASSES)
    sizes = []
    for epoch in range(4):
        step = make_step(z, y, n_classes=CLASSES, step=16 * epoch, epoch=epoch)
        staged.fit(step)
        sizes.append(len(staged(step).gauges["slot_mass"]))
    assert sizes == [2, 2, 3, 3]


def test_staged_slots_gate_classes_by_the_shares_they_saw() -> None:
    """In the epoch before its own the second stage learns a = 4/std and b = mean − std of M/B."""
    staged = entropy.staged(at_epoch=2, n_slots=3)
    z, _ = clouds(20, 8, CLASSES)
    y = torch.tensor([0] * 12 + [1] * 6 + [2] * 2)
    staged.fit(make_step(z, y, n_classes=CLASSES, epoch=0))
    late = staged.second
    assert isinstance(late, Surrogate)
    assert not late.meter.n_classes  # not yet looked at
    staged.fit(make_step(z, y, n_classes=CLASSES, epoch=1, step=1))
    share = torch.tensor([0.6, 0.3, 0.1]).double()
    want = torch.sigmoid(4 / share.std(unbiased=False) * (share - share.mean() + share.std(unbiased=False)))
    shown = staged(make_step(z, y, n_classes=CLASSES, epoch=2, step=16)).gauges["gate_class"]
    assert float(shown) == pytest.approx(float((share * want).sum()))
    bare = entropy.staged(at_epoch=2, n_slots=3, parts=Parts(gates=Gating()))
    assert "gate_class" not in bare(make_step(z, y, n_classes=CLASSES, epoch=2, step=16)).gauges


def test_a_running_shutoff_silences_openings_that_are_unusual() -> None:
    """Levels are set by what the run showed: a step whose gates open as usual is charged, a wide open one is not."""
    parts = Parts(gates=Gating(snr=Snr(level=20.0, sharpness=1.0)), charging=Charging(shutoff="running"))
    surrogate = entropy.plain(parts=parts)
    losses = []
    for i in range(12):
        z, y = clouds(24, DIM, CLASSES, seed=i)
        usual = make_step(z + 3.0, y, n_classes=CLASSES, step=i)
        surrogate.fit(usual)
        losses.append(float(surrogate(usual).loss))
    mean, square = (float(x) for x in surrogate.early.running[1:])
    level = float(surrogate.early.level(torch.zeros(()).double()))
    assert level == pytest.approx(mean + 2 * max(0.0, square - mean**2) ** 0.5)
    assert sum(loss > 0 for loss in losses) > 6
    z, y = clouds(24, DIM, CLASSES, seed=99)
    before = int(surrogate.early.n_shut)
    assert float(surrogate(make_step(100 * (z - z.mean(0)), y, n_classes=CLASSES, step=12)).loss) == 0
    assert int(surrogate.early.n_shut) == before + 1


def test_a_running_shutoff_that_has_seen_nothing_charges() -> None:
    surrogate = entropy.plain(parts=Parts(gates=Gating(snr=True), charging=Charging(shutoff="running")))
    assert float(surrogate(make_step(*clouds(24, DIM, CLASSES), n_classes=CLASSES)).loss) > 0
    assert int(surrogate.early.n_shut) == 0


@pytest.mark.parametrize(("level", "is_shut"), [(0.999, False), (0.0, True)])
def test_a_shutoff_by_hand_holds_while_gates_are_wider_open(level: float, is_shut: bool) -> None:
    surrogate = entropy.plain(parts=Parts(gates=Gating(dimension=True), charging=Charging(shutoff=level)))
    loss = float(surrogate(make_step(*clouds(24, DIM, CLASSES), n_classes=CLASSES)).loss)
    assert (loss == 0) == is_shut
    assert int(surrogate.early.n_shut) == is_shut


def test_the_early_shutoff_is_off_by_default_and_counted_when_on() -> None:
    step = make_step(*clouds(24, DIM, CLASSES), n_classes=CLASSES)
    with pytest.warns(UserWarning, match="report little"):
        literal = entropy.notes_slots(n_slots=3, silent_calls=2)
    losses = [float(literal(step).loss) for _ in range(3)]
    assert losses[:2] == [0, 0]
    assert losses[2] > 0
    assert int(literal.early.n_shut) == 2
    ours = entropy.slots(n_slots=3)
    assert float(ours(step).loss) > 0
    assert int(ours.early.n_shut) == 0


def test_layernormed_spread_cannot_see_the_scale_and_ours_can() -> None:
    with pytest.warns(UserWarning, match="report little"):
        literal = entropy.notes_gated_pooling()
    z, y = clouds(40, 16, CLASSES)
    step, small = (make_step(s * z, y, n_classes=CLASSES) for s in (1.0, 0.1))
    assert float(literal(small).loss) == pytest.approx(float(literal(step).loss), rel=0.05)
    assert float(entropy.plain()(small).loss) < 0.3 * float(entropy.plain()(step).loss)
