"""The fit loop against slow references: averages, plateau, best checkpoint, resuming."""

from dataclasses import fields, replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from splitveil import fitting, pausing
from splitveil.check import RunError, UsageError
from splitveil.fitting import Plan, Shuffled, fit, is_flat
from splitveil.randomness import stream

OTHER = {"steps": 9, "seconds": 1.0, "lr": 0.5, "weight_decay": 0.1, "warmup": 1, "cooldown": 0.5, "ema": 0.9}
OTHER |= {"check_every": 7, "patience": 2, "min_gain": 0.1, "bfloat16": True, "channels_last": True, "momentum": 0.0}
TRUE = torch.tensor([[1.0, -2.0, 0.5]])


def regression(network: nn.Module, step: int) -> torch.Tensor:
    x = torch.randn(32, 3, generator=stream(0, "x", step))
    y = x @ TRUE.T + 0.1 * torch.randn(32, 1, generator=stream(0, "noise", step))
    return (network(x) - y).square().mean()


def distance(network: nn.Module) -> torch.Tensor:
    return (network.weight - TRUE).square().sum()


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 1, bias=False)


def test_it_finds_the_solution_and_says_that_it_is_flat():
    plan = Plan(steps=4000, lr=0.03, check_every=50, patience=4, min_gain=0.05)
    fitted = fit(linear(), loss=regression, score=lambda net: regression(net, -1), plan=plan)
    torch.testing.assert_close(fitted.network.weight.detach(), TRUE, atol=0.03, rtol=0)
    assert (fitted.stopped, fitted.still_falling) == ("plateau", False)
    assert fitted.checks[-1].step < 4000


def test_a_short_budget_is_reported_as_still_falling():
    plan = Plan(steps=60, lr=0.003, check_every=5, patience=4, min_gain=0.01)
    fitted = fit(linear(), loss=regression, score=distance, plan=plan)
    assert (fitted.stopped, fitted.still_falling) == ("steps", True)
    assert fitted.checks[-1].step == 60


def test_a_budget_that_ends_on_a_flat_score_is_not():
    plan = Plan(steps=60, lr=0.003, check_every=5, patience=4, min_gain=0.0, cooldown=0.5)
    fitted = fit(linear(), loss=regression, score=lambda net: distance(net) * 0 + 1, plan=plan)
    assert not fitted.still_falling


def test_the_clock_stops_it():
    fitted = fit(linear(), loss=regression, score=distance, plan=Plan(steps=10**9, seconds=0.2, lr=1e-5))
    assert fitted.stopped == "seconds"
    assert fitted.checks[-1].seconds < 2


def test_the_shadow_is_the_running_mean_of_the_weights():
    weights = []

    def watched(network: nn.Module, step: int) -> torch.Tensor:
        weights.append(network.weight.detach().clone())  # after `step` steps
        return regression(network, step)

    shadows = []

    def score(network: nn.Module) -> torch.Tensor:
        shadows.append(network.weight.detach().clone())
        return distance(network)

    fit(linear(), loss=watched, score=score, plan=Plan(steps=40, ema=0.7, check_every=1, patience=99, lr=0.05))
    slow = weights[0]
    for t, current in enumerate(weights[1:]):
        decay = min(0.7, (1 + t) / (10 + t))
        slow = decay * slow + (1 - decay) * current
        torch.testing.assert_close(shadows[t], slow)


def test_the_best_weights_on_selection_are_kept():
    scores = iter([3.0, 1.0, 2.0, 4.0])
    kept = []

    def score(network: nn.Module) -> torch.Tensor:
        kept.append(network.weight.detach().clone())
        return torch.tensor(next(scores))

    fitted = fit(linear(), loss=regression, score=score, plan=Plan(steps=40, check_every=10, patience=9))
    torch.testing.assert_close(fitted.network.weight.detach(), kept[1], rtol=0, atol=0)
    assert fitted.best.score == 1.0
    assert not torch.equal(kept[1], kept[3])


def test_scoring_the_shadow_leaves_the_weights_alone():
    plan = Plan(steps=40, check_every=40)
    often = Plan(steps=40, check_every=1, patience=100)
    first = fit(linear(), loss=regression, score=distance, plan=plan).checks[-1]
    second = fit(linear(), loss=regression, score=distance, plan=often).checks[-1]
    assert first.score == pytest.approx(second.score, rel=1e-6)


@pytest.mark.parametrize("stop_at", [20, 70, 95])
def test_a_stopped_fit_resumes_to_the_same_numbers(tmp_path, monkeypatch, stop_at):
    monkeypatch.setattr(fitting, "SAVE_EVERY", 0.0)
    plan, state = Plan(steps=100, check_every=10, patience=3, lr=0.01), tmp_path / "fit.safetensors"
    wanted = fit(network(), loss=reconstruction, score=lambda net: reconstruction(net, -1), plan=plan)

    def interrupted(net: nn.Module, step: int) -> torch.Tensor:
        if step == stop_at:
            raise KeyboardInterrupt
        return reconstruction(net, step)

    with pytest.raises(KeyboardInterrupt):
        fit(network(), loss=interrupted, score=lambda net: reconstruction(net, -1), plan=plan, state=state)
    done: list[int] = []

    def counted(net: nn.Module, step: int) -> torch.Tensor:
        done.append(step)
        return reconstruction(net, step)

    found = fit(network(), loss=counted, score=lambda net: reconstruction(net, -1), plan=plan, state=state)
    assert done[0] == stop_at // 10 * 10
    assert [(c.step, c.train_loss, c.score) for c in found.checks] == [
        (c.step, c.train_loss, c.score) for c in wanted.checks
    ]
    for a, b in zip(found.network.state_dict().values(), wanted.network.state_dict().values(), strict=True):
        torch.testing.assert_close(a.float(), b.float(), rtol=0, atol=0)


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_fit_that_its_watcher_ends_loses_nothing(channels_last, tmp_path):
    plan, state = Plan(steps=60, lr=0.01, check_every=10, channels_last=channels_last), tmp_path / "fit"
    wanted = fit(network(), loss=reconstruction, score=lambda net: reconstruction(net, -1), plan=plan)

    def ends(check):
        if check.step == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(
            network(),
            loss=reconstruction,
            score=lambda net: reconstruction(net, -1),
            plan=plan,
            progress=ends,
            state=state,
        )
    done = []

    def counted(net, step):
        done.append(step)
        return reconstruction(net, step)

    found = fit(network(), loss=counted, score=lambda net: reconstruction(net, -1), plan=plan, state=state)
    assert done[0] == 30
    assert [check.score for check in found.checks] == [check.score for check in wanted.checks]


def test_a_fit_that_is_paused_between_two_checks_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(pausing, "UNASKED", 0.0)
    plan, state, steps = Plan(steps=60, lr=0.01, check_every=10), tmp_path / "fit", []
    wanted = fit(network(), loss=reconstruction, score=lambda net: reconstruction(net, -1), plan=plan)

    def counted(net: nn.Module, step: int) -> torch.Tensor:
        steps.append(step)
        return reconstruction(net, step)

    def ask() -> None:
        if len(steps) == 35:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), pausing.pausing(ask):
        fit(network(), loss=counted, score=lambda net: reconstruction(net, -1), plan=plan, state=state)
    found = fit(network(), loss=counted, score=lambda net: reconstruction(net, -1), plan=plan, state=state)
    assert steps == list(range(60))
    assert [(c.step, c.train_loss, c.score) for c in found.checks] == [
        (c.step, c.train_loss, c.score) for c in wanted.checks
    ]


def test_a_fit_that_has_just_begun_is_not_paused():
    def ask() -> None:
        raise KeyboardInterrupt

    with pausing.pausing(ask):
        assert fit(linear(), loss=regression, score=distance, plan=Plan(steps=20, check_every=10)).checks[-1].step == 20


@pytest.mark.parametrize("kept", [0, 100, -1])
def test_a_damaged_state_is_dropped_and_the_fit_begins_anew(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "SAVE_EVERY", 0.0)
    plan, state = Plan(steps=20, check_every=10), tmp_path / "trial.fit"
    wanted = fit(network(), loss=reconstruction, score=lambda net: reconstruction(net, -1), plan=plan, state=state)
    state.write_bytes(state.read_bytes()[:kept])
    found = fit(network(), loss=reconstruction, score=lambda net: reconstruction(net, -1), plan=plan, state=state)
    assert [check.score for check in found.checks] == [check.score for check in wanted.checks]


@pytest.mark.parametrize("other", ["deeper", "wider", "shallower", "renamed"])
def test_a_fit_begins_anew_beside_the_state_of_another_network(other, tmp_path):
    nets = {"deeper": [*network(), nn.Conv2d(1, 1, 1)], "shallower": network()[:3]}
    nets |= {"wider": [nn.Conv2d(1, 4, 5, padding=2), *network()[1:]], "renamed": [nn.Identity(), *network()]}
    words = {"loss": reconstruction, "score": lambda net: reconstruction(net, -1), "plan": Plan(20)}
    fit(nn.Sequential(*nets[other]), state=tmp_path / "fit", **words)
    found, wanted = fit(network(), state=tmp_path / "fit", **words), fit(network(), **words)
    assert [check.score for check in found.checks] == [check.score for check in wanted.checks]


def test_a_state_that_cannot_be_written_is_told_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "SAVE_EVERY", 0.0)
    state = tmp_path / "gone" / "trial.fit"
    with pytest.raises(RunError, match=r"cannot write .*trial.fit: No such file or directory; free some space"):
        fit(linear(), loss=regression, score=distance, plan=Plan(steps=20, check_every=10), state=state)


def test_a_plan_is_told_apart_by_every_setting():
    others = [replace(Plan(), **{name: value}) for name, value in OTHER.items()]
    assert set(OTHER) == {each.name for each in fields(Plan)}
    assert len({repr(plan) for plan in (Plan(), *others)}) == 1 + len(others)  # attacks are stored under these words


def test_what_a_plan_says_is_not_changed_to_what_suits():
    assert Plan().suited(bfloat16=True, channels_last=True) == Plan(bfloat16=True, channels_last=True)
    said = Plan(bfloat16=False, channels_last=True)
    assert said.suited(bfloat16=True, channels_last=False) == said


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1))


def reconstruction(net: nn.Module, step: int) -> torch.Tensor:
    x = torch.rand(8, 1, 6, 6, generator=stream(1, "x", step))
    return (net(x) - (1 - x)).square().mean()


def test_no_step_waits_for_the_device():
    class CountReads(TorchDispatchMode):
        reads = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            CountReads.reads += func is torch.ops.aten._local_scalar_dense.default
            return func(*args, **(kwargs or {}))

    with CountReads():
        fitted = fit(
            network(),
            loss=reconstruction,
            score=lambda net: reconstruction(net, -1),
            plan=Plan(steps=60, check_every=20),
        )
    assert [check.step for check in fitted.checks] == [10, 20, 30, 40, 50, 60]
    assert CountReads.reads <= 2 * len(fitted.checks)


def test_what_is_soon_learned_by_heart_is_kept_from_before_that():
    """Four images and their noise: the score is lowest long before the first check that flatness is judged by."""
    x, noise = (torch.rand(4, 1, 6, 6, generator=stream(0, key)) for key in ("x", "noise"))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 64), nn.ReLU(), nn.Linear(64, 36))
    fitted = fit(
        net,
        loss=lambda net, step: (net(x) - (x + 0.5 * noise).flatten(1)).square().mean(),
        score=lambda net: (net(noise) - x.flatten(1)).square().mean(),
        plan=Plan(steps=400, lr=0.01, check_every=100, ema=0.5),
    )
    assert fitted.best.step < 100
    assert fitted.checks[0].step == 10


def test_bfloat16_and_channels_last_keep_float32_weights():
    plan = Plan(steps=200, check_every=50, lr=0.01, bfloat16=True, channels_last=True)
    fitted = fit(network(), loss=reconstruction, score=lambda net: reconstruction(net, -1), plan=plan)
    assert {p.dtype for p in fitted.network.parameters()} == {torch.float32}
    assert fitted.best.score < 0.9 * fitted.checks[0].score


def test_a_diverged_fit_says_so():
    with pytest.raises(RunError, match="diverged at step 10"):
        fit(linear(), loss=lambda net, step: net.weight.sum() * torch.nan, score=distance, plan=Plan(check_every=10))


def test_each_epoch_visits_every_image_once():
    order = Shuffled(10, size=3, seed=0, device=torch.device("cpu"))
    epochs = [torch.cat([order(3 * epoch + i) for i in range(3)]) for epoch in range(2)]
    assert all(len(set(epoch.tolist())) == 9 for epoch in epochs)
    assert epochs[0].tolist() != epochs[1].tolist()
    again = Shuffled(10, size=3, seed=0, device=torch.device("cpu"))
    assert again(4).tolist() == order(4).tolist()


def test_a_batch_is_never_larger_than_the_set():
    order = Shuffled(5, size=64, seed=0, device=torch.device("cpu"))
    assert sorted(order(7).tolist()) == [0, 1, 2, 3, 4]


def test_flat_needs_more_than_patience_scores():
    assert not is_flat([1.0, 1.0], patience=2, min_gain=0.01)
    assert is_flat([1.0, 1.0, 0.995], patience=2, min_gain=0.01)
    assert not is_flat([1.0, 1.0, 0.98], patience=2, min_gain=0.01)


def test_a_wrong_plan_is_refused():
    with pytest.raises(UsageError, match="cooldown"):
        Plan(cooldown=1.0)
