"""What every surrogate promises, whatever its grouping: guards, order, shapes, state, routing of gradients."""

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from references.steps import clouds, make_step
from references.surrogates import MAKERS, counted, make, wander
from splitveil.check import UsageError
from splitveil.regularizers import entropy
from splitveil.regularizers.base import Regularizer
from splitveil.regularizers.entropy import KMeans, Memory, Surrogate
from splitveil.regularizers.entropy.meter import Meter

DIM, CLASSES = 6, 4


def _run(regularizer: Regularizer, *, first: int, n: int, n_classes: int = CLASSES) -> list[Tensor]:
    """Steps of training without a network: losses and gradients. An epoch is three steps."""
    seen = []
    for i in range(first, first + n):
        z, y = clouds(24, DIM, n_classes, seed=i)
        step = make_step(z.requires_grad_(), y, n_classes=n_classes, step=i, epoch=i // 3, accuracy=0.6)
        detached = make_step(z.detach(), y, n_classes=n_classes, step=i, epoch=i // 3, accuracy=0.6)
        regularizer.fit(detached)
        loss = regularizer(step).loss
        loss.backward()  # type: ignore[no-untyped-call]
        assert z.grad is not None
        seen += [loss.detach(), z.grad]
        if i % 3 == 2:
            regularizer.end_epoch(step.progress)
    return seen


@pytest.mark.parametrize("name", MAKERS)
def test_state_restores_everything_into_a_fresh_one(name: str) -> None:
    whole, other = make(name), make(name)
    _run(whole, first=0, n=4)
    other.load_state_dict(load(save({k: v.contiguous() for k, v in whole.state_dict().items()})))
    for a, b in zip(_run(whole, first=4, n=5), _run(other, first=4, n=5), strict=True):
        assert torch.equal(a, b)
    left, right = whole.state_dict(), other.state_dict()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[k], right[k]) for k in left)


@pytest.mark.parametrize("name", MAKERS)
def test_state_is_tensors_and_a_copy_is_independent(name: str) -> None:
    regularizer = make(name)
    _run(regularizer, first=0, n=4)
    assert all(isinstance(v, Tensor) for v in regularizer.state_dict().values())
    twin = copy.deepcopy(regularizer)
    for a, b in zip(_run(twin, first=4, n=3), _run(regularizer, first=4, n=3), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", MAKERS)
def test_the_charge_leaves_own_parameters_without_gradient(name: str) -> None:
    regularizer = make(name)
    _run(regularizer, first=0, n=4)
    assert all(p.grad is None for p in regularizer.parameters())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", MAKERS)
def test_a_broken_member_charges_a_connected_zero_and_is_counted(name: str, bad: float) -> None:
    regularizer = make(name)
    _run(regularizer, first=0, n=4)
    z, y = clouds(24, DIM, CLASSES, seed=50)
    z[3, 1] = bad
    z.requires_grad_()
    regularizer.fit(make_step(z.detach(), y, n_classes=CLASSES, step=4, epoch=1))
    penalty = regularizer(make_step(z, y, n_classes=CLASSES, step=4, epoch=1))
    penalty.loss.backward()  # type: ignore[no-untyped-call]
    assert float(penalty.loss.detach()) == 0
    assert z.grad is not None
    assert float(z.grad.abs().sum()) == 0
    broken = regularizer.broken_steps()
    assert broken is not None
    assert int(broken) == 1
    regularizer.end_epoch(make_step(z, y, n_classes=CLASSES, step=4, epoch=1).progress)
    after = _run(regularizer, first=6, n=1)
    assert all(bool(t.isfinite().all()) for t in after)
    assert all(bool(v.isfinite().all()) for v in regularizer.state_dict().values() if v.is_floating_point())


def _meters(regularizer: Regularizer) -> list[nn.Module]:
    return [m for m in regularizer.modules() if type(m).__name__ == "Meter" and getattr(m, "n_classes", 0)]


def test_the_class_of_a_broken_member_is_named() -> None:
    surrogate = entropy.plain()
    z, y = clouds(24, DIM, CLASSES, seed=50)
    z[3] = torch.nan
    surrogate(make_step(z.requires_grad_(), y, n_classes=CLASSES))
    assert surrogate.meter.broken.nonzero().flatten().tolist() == [int(y[3])]
    assert int(surrogate.meter.broken_call) == 1


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e12])
@pytest.mark.parametrize("name", MAKERS)
def test_no_spread_and_huge_spread_stay_finite(name: str, scale: float) -> None:
    regularizer = make(name)
    _run(regularizer, first=0, n=4)
    z, y = clouds(24, DIM, CLASSES, seed=50)
    z = (scale * z).requires_grad_()
    penalty = regularizer(make_step(z, y, n_classes=CLASSES, step=4, epoch=1))
    penalty.loss.backward()  # type: ignore[no-untyped-call]
    assert bool(penalty.loss.isfinite())
    assert z.grad is not None
    assert bool(z.grad.isfinite().all())


@pytest.mark.parametrize("name", [n for n in MAKERS if n not in ("mixture-prior", "unlabeled")])
def test_one_member_classes_are_charged_nothing_and_counted(name: str) -> None:
    regularizer = make(name)
    z = torch.rand(CLASSES, DIM, dtype=torch.float64).requires_grad_()
    loss = regularizer(make_step(z, torch.arange(CLASSES), n_classes=CLASSES)).loss
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == 0
    assert z.grad is not None
    assert float(z.grad.abs().sum()) == 0
    assert sum(int(m.n_skipped) for m in _meters(regularizer)) == CLASSES


ORDERLESS = ("plain", "unlabeled", "kmeans", "mixture", "hybrid", "gated-pooling", "slots", "staged", "correlated")


@pytest.mark.parametrize("name", [*ORDERLESS, "adaptive, all gates"])
@given(seed=st.integers(0, 99), n_classes=st.integers(2, 40), n=st.integers(2, 30))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_order_of_members_changes_nothing(name: str, seed: int, n_classes: int, n: int) -> None:
    """Also with more classes than members, and with classes of one member or none. `staged` is in its slots by then.

    A mixture prior hands every member a noise of its own; test_prior.py lets that travel along.
    """
    regularizer = make(name)
    for i in range(2):
        z, y = clouds(20, DIM, n_classes, seed=1000 + i)
        regularizer.fit(make_step(z, y, n_classes=n_classes, step=i))
    regularizer.end_epoch(make_step(z, y, n_classes=n_classes).progress)
    z, y = clouds(n, DIM, n_classes, seed=seed)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    losses, slopes = [], []
    for pick in (torch.arange(n), order):
        mine = z[pick].clone().requires_grad_()
        loss = regularizer(make_step(mine, y[pick], n_classes=n_classes, step=5, epoch=1)).loss
        loss.backward()  # type: ignore[no-untyped-call]
        assert mine.grad is not None
        losses.append(float(loss.detach()))
        slopes.append(torch.zeros_like(z).index_copy_(0, pick, mine.grad))
    assert losses[0] == pytest.approx(losses[1], abs=1e-10)
    torch.testing.assert_close(slopes[0], slopes[1], rtol=0, atol=1e-10)


@given(scale=st.floats(0.1, 10.0))
@settings(max_examples=10, deadline=None)
def test_information_depends_on_spread_over_noise_alone(scale: float) -> None:
    z, y = clouds(24, DIM, CLASSES)
    one = entropy.plain()(make_step(z, y, n_classes=CLASSES, noise_std=0.1)).loss
    scaled = entropy.plain()(make_step(scale * z, y, n_classes=CLASSES, noise_std=0.1 * scale)).loss
    assert float(one) == pytest.approx(float(scaled), rel=1e-9)


@pytest.mark.parametrize("name", MAKERS)
def test_nothing_is_asked_of_the_device_in_a_step(name: str) -> None:
    """Under fake tensors any question about a value raises."""
    regularizer = make(name)
    _run(regularizer, first=0, n=4)
    with FakeTensorMode(allow_non_fake_inputs=True):
        for i in (4, 16):  # without and with gauges
            z, y = torch.zeros(24, DIM, dtype=torch.float64, requires_grad=True), torch.zeros(24, dtype=torch.long)
            regularizer.fit(make_step(z.detach(), y, n_classes=CLASSES, step=i, epoch=1))
            assert regularizer(make_step(z, y, n_classes=CLASSES, step=i, epoch=1)).loss.shape == ()


def test_a_question_to_the_device_would_be_noticed() -> None:
    with FakeTensorMode(), pytest.raises(Exception, match="local_scalar_dense"):
        float(torch.zeros(3).sum())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
@pytest.mark.parametrize("name", MAKERS)
def test_a_replayed_step_is_the_step_itself_and_never_waits(name: str) -> None:
    def watch(is_watched: bool) -> None:
        torch.cuda.set_sync_debug_mode("error" if is_watched else "default")

    outcomes = []
    for is_on in (True, False):
        regularizer = make(name)
        for meter in (m for m in regularizer.modules() if isinstance(m, Meter)):
            meter.replay.is_on &= is_on
        outcomes.append([*wander(regularizer, device="cuda", watch=watch), *counted(regularizer)])
    for a, b in zip(*outcomes, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_one_backward_of_the_sum_is_stash_zero_blend() -> None:
    torch.manual_seed(0)
    encoder, head = nn.Linear(5, DIM).double(), nn.Linear(DIM, CLASSES).double()
    surrogate = entropy.gated_pooling(hidden=8)
    x, y, lam = torch.randn(24, 5).double(), torch.randint(CLASSES, (24,)), 0.37

    def losses() -> tuple[Tensor, Tensor]:
        z = encoder(x)
        return F.cross_entropy(head(z), y), surrogate(make_step(z, y, n_classes=CLASSES)).loss

    everything = [*encoder.parameters(), *head.parameters()]
    task, penalty = losses()
    (task + lam * penalty).backward()  # type: ignore[no-untyped-call]
    at_once = [p.grad.clone() for p in everything if p.grad is not None]
    for p in everything:
        p.grad = None
    losses()[1].backward()  # type: ignore[no-untyped-call]
    stash = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in everything]
    assert all(float(s.abs().sum()) == 0 for s in stash[2:])  # the head is charged nothing
    for p in everything:
        p.grad = None
    losses()[0].backward()  # type: ignore[no-untyped-call]
    blended = [p.grad + lam * s for p, s in zip(everything, stash, strict=True) if p.grad is not None]
    for a, b in zip(at_once, blended, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-14, atol=1e-16)


def test_without_noise_a_surrogate_refuses() -> None:
    z, y = clouds(8, DIM, 2)
    with pytest.raises(UsageError, match="noise_std must be > 0"):
        entropy.plain()(make_step(z, y, n_classes=2, noise_std=0.0))


def test_a_refit_waits_for_its_epoch() -> None:
    surrogate = Surrogate(KMeans(n_groups=2), memory=Memory(refit_every=3))
    grouping = surrogate.grouping
    assert isinstance(grouping, KMeans)
    counts = []
    for epoch in range(6):
        z, y = clouds(24, DIM, CLASSES, seed=epoch)
        step = make_step(z, y, n_classes=CLASSES, step=epoch, epoch=epoch)
        surrogate.fit(step)
        surrogate.end_epoch(step.progress)
        counts.append(int(grouping.n_refits))
    assert counts == [0, 0, 1, 1, 1, 2]


def test_a_thousand_classes_need_rows_for_those_that_are_there() -> None:
    surrogate = entropy.slots(n_slots=3, slot_dim=8)
    z, y = clouds(32, DIM, 1000)
    y[1] = y[0]
    loss = surrogate(make_step(z.requires_grad_(), y, n_classes=1000)).loss
    assert float(loss.detach()) > 0
    largest = max(v.numel() for v in surrogate.state_dict().values())
    assert largest < 20_000
