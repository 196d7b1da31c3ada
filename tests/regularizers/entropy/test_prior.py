import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from references import mixtures as slow
from references.steps import clouds, make_step
from splitveil.regularizers.entropy import MixturePrior
from splitveil.regularizers.entropy.members import assemble

DIM, CLASSES, STD = 4, 3, 0.1


def _prior(n_fits: int = 5, *, n_groups: int = 2, window: int = 2000) -> MixturePrior:
    prior = MixturePrior(n_groups=n_groups, window=window)
    for i in range(n_fits):
        prior.fit(make_step(*clouds(40, DIM, CLASSES, seed=i), n_classes=CLASSES, step=i, noise_std=STD))
    return prior


def test_value_and_gradient_are_those_of_a_loop() -> None:
    prior = _prior()
    z, y = clouds(20, DIM, CLASSES, seed=9)
    noise = prior.meter.numbers({"noise": (20, DIM)}, seed=0, key="entropy-charge", step=7, like=z)["noise"].clone()
    fast, leaf = z.clone().requires_grad_(), z.clone().requires_grad_()
    loss = prior(make_step(fast, y, n_classes=CLASSES, step=7, noise_std=STD)).loss
    loss.backward()
    want = torch.zeros((), dtype=torch.float64)
    channel = torch.distributions.Normal(torch.zeros(DIM).double(), STD)
    q = prior.mixture()
    for m, c in enumerate(y.tolist()):
        sent = leaf[m] + STD * noise[m]
        parts = [
            q.log_weight[c, k] + torch.distributions.Normal(q.mean[c, k], q.var[c, k].sqrt()).log_prob(sent).sum()
            for k in range(2)
        ]
        want = want + channel.log_prob(STD * noise[m]).sum() - torch.logsumexp(torch.stack(parts), 0)
    want = want / (20 * DIM)
    want.backward()
    torch.testing.assert_close(loss.detach(), want.detach(), rtol=0, atol=1e-10)
    torch.testing.assert_close(fast.grad, leaf.grad, rtol=0, atol=1e-10)


def test_one_group_learns_the_running_mean_and_variance_of_what_is_sent() -> None:
    prior = _prior(1, n_groups=1, window=10_000)
    z, y = clouds(40, DIM, CLASSES, seed=0)
    noise = prior.meter.numbers({"noise": (40, DIM), "lots": (40, 1)}, seed=0, key="entropy-fit", step=0, like=z)[
        "noise"
    ]
    sent = z + STD * noise
    for c in range(CLASSES):
        torch.testing.assert_close(prior.mean[c, 0], sent[y == c].mean(0))
        want = sent[y == c].var(0, unbiased=False).clamp_min(STD**2)
        torch.testing.assert_close(prior.var[c, 0], want)
    assert prior.weight.flatten().tolist() == pytest.approx([1.0] * CLASSES)


def test_two_batches_join_as_one() -> None:
    """Without forgetting, the running moments of one group are those of all members so far."""
    prior = _prior(2, n_groups=1, window=10_000)
    sent, labels = [], []
    for i in range(2):
        z, y = clouds(40, DIM, CLASSES, seed=i)
        shapes = {"noise": (40, DIM), "lots": (40, 1)}
        sent.append(z + STD * prior.meter.numbers(shapes, seed=0, key="entropy-fit", step=i, like=z)["noise"].clone())
        labels.append(y)
    everything, y = torch.cat(sent), torch.cat(labels)
    for c in range(CLASSES):
        torch.testing.assert_close(prior.mean[c, 0], everything[y == c].mean(0))
        torch.testing.assert_close(prior.var[c, 0], everything[y == c].var(0, unbiased=False), rtol=1e-6, atol=1e-9)


@given(seed=st.integers(0, 99), n=st.integers(2, 30))
@settings(max_examples=12, deadline=None)
def test_order_of_members_changes_nothing_if_their_noise_moves_along(seed: int, n: int) -> None:
    prior = _prior()
    z, y = clouds(n, DIM, CLASSES, seed=seed)
    rng = torch.Generator().manual_seed(seed)
    noise, order = torch.randn(n, DIM, generator=rng, dtype=torch.float64), torch.randperm(n, generator=rng)
    worths, slopes = [], []
    for pick in (torch.arange(n), order):
        mine = z[pick].clone().requires_grad_()
        members = assemble(mine, y[pick], n_classes=CLASSES, noise_var=STD**2)
        worth, _ = prior.value(members, {"noise": noise[pick]}, has_gauges=False)
        (slope,) = torch.autograd.grad(worth, mine)
        worths.append(float(worth.detach()))
        slopes.append(torch.zeros_like(z).index_copy_(0, pick, slope))
    assert worths[0] == pytest.approx(worths[1], abs=1e-10)
    assert worths[0] != 0
    torch.testing.assert_close(slopes[0], slopes[1], rtol=0, atol=1e-10)


def test_a_class_not_seen_yet_costs_nothing() -> None:
    prior = _prior(0)
    z, y = clouds(20, DIM, CLASSES, seed=9)
    assert float(prior(make_step(z, y, n_classes=CLASSES, noise_std=STD)).loss) == 0


def test_fitting_lowers_the_cost_of_fresh_members() -> None:
    fresh = make_step(*clouds(300, DIM, CLASSES, seed=99), n_classes=CLASSES, step=3, noise_std=STD)
    first, later = (float(_prior(n)(fresh).loss) for n in (1, 40))
    assert later < first


def test_q_is_a_density() -> None:
    prior = _prior(10)
    q = prior.mixture()
    torch.testing.assert_close(q.log_weight.exp().sum(-1), torch.ones(CLASSES).double())
    x = torch.zeros(DIM).double()
    assert slow.log_density(x, q.log_weight[0], q.mean[0], [torch.diag(v) for v in q.var[0]]) < 100
    assert float(q.var.min()) >= STD**2 * (1 - 1e-12)
