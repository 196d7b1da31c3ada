"""Vectors, threshold, reservoir, optimizer, numbers, gates: the small parts."""

import pytest
import torch
from torch import nn

from splitveil.check import UsageError
from splitveil.regularizers.entropy import Gates, Share, Threshold, ToVectors
from splitveil.regularizers.entropy.adam import Adam
from splitveil.regularizers.entropy.groupings.base import Space
from splitveil.regularizers.entropy.members import assemble
from splitveil.regularizers.entropy.moments import Moments
from splitveil.regularizers.entropy.numbers import Numbers
from splitveil.regularizers.entropy.parallel import World
from splitveil.regularizers.entropy.reservoir import Reservoir

Y = torch.tensor([0, 1])


def test_flatten_keeps_values_and_noise() -> None:
    z = torch.arange(24.0).view(2, 3, 2, 2)
    got = ToVectors("flatten")(z, Y, noise_std=0.5)
    assert torch.equal(got.z, z.view(2, 12))
    assert got.noise_var == 0.25


def test_pooling_averages_noise_too() -> None:
    noise = torch.randn(4000, 2, 4, 4)
    got = ToVectors("pool", side=2)(noise, torch.zeros(4000, dtype=torch.long), noise_std=1.0)
    assert got.z.shape == (4000, 8)
    assert float(got.z.var()) == pytest.approx(got.noise_var, rel=0.05)
    assert got.noise_var == 0.25


def test_tokens_and_map_places_become_members_of_their_image() -> None:
    tokens = ToVectors("tokens")(torch.arange(12.0).view(2, 3, 2), Y, noise_std=1.0)
    assert tokens.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert tokens.z[1].tolist() == [2, 3]
    z = torch.arange(16.0).view(2, 2, 2, 2)
    places = ToVectors("tokens")(z, Y, noise_std=1.0)
    assert places.z[1].tolist() == [float(z[0, 0, 0, 1]), float(z[0, 1, 0, 1])]


@pytest.mark.parametrize(("how", "shape"), [("pool", (2, 3)), ("pool", (2, 3, 5, 5)), ("tokens", (2, 3))])
def test_features_that_do_not_fit_are_refused_in_one_line(how: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="need"):
        ToVectors(how, side=2)(torch.zeros(shape), Y, noise_std=1.0)  # type: ignore[arg-type]


def test_tau_follows_sigma_and_never_reaches_zero() -> None:
    assert Threshold(var_threshold=0.125).tau(0.04) == 0.005
    assert Threshold(var_threshold=0.125).tau(1e-12) == 1e-8


def test_adaptive_tau_is_a_quantile_of_the_running_spread() -> None:
    threshold = Threshold(quantile=0.5, momentum=0.5)
    threshold.build(4, like=torch.zeros(0))
    assert float(threshold.tau(0.04)) == pytest.approx(0.005)
    label = torch.arange(4)
    threshold.observe(torch.tensor([1.0, 2.0, 3.0, 9.0]), label, torch.tensor([1.0, 1.0, 1.0, 0.0]))
    assert float(threshold.tau(0.04)) == 2.0
    threshold.observe(torch.tensor([1.0, 4.0, 3.0, 9.0]), label, torch.tensor([0.0, 1.0, 0.0, 0.0]))
    assert threshold.running.tolist() == [1.0, 3.0, 3.0, 0.0]


def test_the_reservoir_keeps_the_newest() -> None:
    reservoir = Reservoir(capacity=5)
    reservoir.build(1, like=torch.zeros(0))
    for start in (0, 3, 6):
        reservoir.add(torch.arange(start, start + 3.0)[:, None], torch.arange(start, start + 3))
    points, labels = reservoir.held()
    assert sorted(labels.tolist()) == [4, 5, 6, 7, 8]
    assert torch.equal(points[:, 0].long(), labels)
    reservoir.add(torch.arange(20.0)[:, None], torch.arange(20))
    assert sorted(reservoir.held()[1].tolist()) == [15, 16, 17, 18, 19]


def test_the_reservoir_leaves_broken_members_out_and_saves_only_what_it_holds() -> None:
    reservoir = Reservoir(capacity=100)
    reservoir.build(2, like=torch.zeros(0))
    reservoir.add(torch.tensor([[1.0, 2.0], [torch.nan, 0.0]]), torch.tensor([3, 4]))
    assert reservoir.held()[1].tolist() == [3]
    saved = reservoir.state_dict()
    assert saved["held_points"].shape == (2, 2)
    other = Reservoir(capacity=100)
    other.build(2, like=torch.zeros(0))
    other.load_state_dict(saved)
    for one in (reservoir, other):
        one.add(torch.ones(1, 2), torch.tensor([9]))
    assert torch.equal(other.held()[1], reservoir.held()[1])


def test_a_full_reservoir_goes_on_where_it_was_saved() -> None:
    one, other = Reservoir(capacity=5), Reservoir(capacity=5)
    for reservoir in (one, other):
        reservoir.build(1, like=torch.zeros(0))
    one.add(torch.arange(7.0)[:3, None], torch.arange(3))
    one.add(torch.arange(7.0)[3:, None], torch.arange(3, 7))
    assert one.state_dict()["next"] == 2
    other.load_state_dict(one.state_dict())
    for reservoir in (one, other):
        reservoir.add(torch.ones(2, 1), torch.tensor([10, 11]))
        assert sorted(reservoir.held()[1].tolist()) == [4, 5, 6, 10, 11]
        reservoir.clear()
        assert len(reservoir) == 0


def test_adam_is_that_of_torch_and_skips_broken_gradients() -> None:
    ours = [nn.Parameter(torch.ones(3).double()), nn.Parameter(torch.full((2, 2), 2.0).double())]
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    adam = Adam(lr=0.05)
    adam.build(ours)
    reference = torch.optim.Adam(theirs, lr=0.05)
    for i in range(5):
        slopes = [torch.randn(p.shape, generator=torch.Generator().manual_seed(i)).double() for p in ours]
        adam.step(ours, slopes, World(0, 1))
        for p, g in zip(theirs, slopes, strict=True):
            p.grad = g.clone()
        reference.step()
        before = [p.detach().clone() for p in ours]
        adam.step(ours, [torch.full_like(g, torch.nan) for g in slopes], World(0, 1))
        assert all(torch.equal(a, b) for a, b in zip(before, ours, strict=True))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_numbers_depend_on_seed_purpose_and_step_alone() -> None:
    numbers, like = Numbers(), torch.zeros(0)
    shapes = {"a": (2, 3), "b": (4,)}
    first = {k: v.clone() for k, v in numbers(shapes, seed=1, key="fit", step=2, like=like).items()}
    for change in ({"seed": 2}, {"key": "charge"}, {"step": 3}):
        other = numbers(shapes, **{"seed": 1, "key": "fit", "step": 2, **change}, like=like)  # type: ignore[arg-type]
        assert not torch.equal(other["a"], first["a"])
    again = Numbers()(shapes, seed=1, key="fit", step=2, like=like)
    assert torch.equal(again["a"], first["a"])
    assert torch.equal(again["b"], first["b"])


def test_the_class_gate_takes_its_constants_from_running_shares() -> None:
    gates = Gates(share=Share(slope=None, level=None))
    gates.build(Space(2, 3, 0, torch.zeros(0)))
    y = torch.tensor([0] * 6 + [1] * 3 + [2])
    members = assemble(torch.zeros(10, 2), y, n_classes=3, noise_var=1.0)
    gates.observe(members)
    share = torch.tensor([0.6, 0.3, 0.1])
    mean, std = share.mean(), share.std(unbiased=False)
    found = Moments(torch.ones(3, 1), torch.zeros(3, 1, 2), torch.zeros(3, 1, 2))
    want = torch.sigmoid(4 / std * (share - mean + std))
    torch.testing.assert_close(gates(members, found, None).share, want)


def test_a_remembered_weight_returns_from_empty_groups() -> None:
    gates = Gates()
    gates.build(Space(2, 1, 0, torch.zeros(0)))
    members = assemble(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long), n_classes=1, noise_var=1.0)
    found = Moments(torch.tensor([[3.0, 1.0, 0.0]]), torch.zeros(1, 3, 2), torch.zeros(1, 3, 2))
    weight = gates(members, found, torch.tensor([[0.2, 0.3, 0.5]])).weight
    torch.testing.assert_close(weight, torch.tensor([[0.4, 0.6, 0.0]]))
