"""Oracles release what the client would send, and nothing else about it changes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from splitveil.attacks import Averaged, OptimizationAttack, Ridge, Seen, Threat, grant, oracle_of
from splitveil.attacks.channel import channel_of
from splitveil.check import UsageError
from splitveil.evaluation import Suite, Trial, evaluate
from splitveil.evaluation.roles import split_roles
from splitveil.mechanisms import Chain, Clip, Gaussian, Identity
from splitveil.metrics import mse
from splitveil.randomness import SeededSource, stream
from splitveil.split import Client
from worlds.linear_gaussian import Matrix, world

X = torch.rand(6, 1, 8, 8, generator=stream(0, "x"))


def encoder() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Flatten(2))


def test_one_release_is_the_client_s_own_forward():
    client = Client(encoder(), Gaussian(std=0.3)).eval()
    found = oracle_of(client).release(X, source=SeededSource(1))
    torch.testing.assert_close(found[0], client(X, source=SeededSource(1)))


@pytest.mark.parametrize(
    "mechanism",
    [Gaussian(std=0.3), Identity(), Chain([Clip(radius=1.0), Gaussian(std=0.3)])],
    ids=lambda each: each.name,
)
@pytest.mark.parametrize("releases", [1, 5])
@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_releases_are_bit_for_bit_what_the_mechanism_sends_of_as_many_copies(mechanism, releases, at_once, monkeypatch):
    client = Client(encoder(), mechanism).eval()
    monkeypatch.setattr("splitveil.attacks.oracle.AT_ONCE", at_once * client.encode(X).numel())
    z = client.encode(X).detach()
    wanted = mechanism(z.repeat(releases, 1, 1), source=SeededSource(1))
    found = oracle_of(client).release(X, source=SeededSource(1), releases=releases)
    assert torch.equal(found, wanted.reshape(releases, *z.shape))


def test_releases_of_one_input_differ_by_noise_of_the_right_size():
    client = Client(encoder(), Gaussian(std=0.3)).eval()
    found = oracle_of(client).release(X, source=SeededSource(1), releases=50)
    assert found.shape[:2] == (50, 6)
    torch.testing.assert_close(found.std(0).mean(), torch.tensor(0.3), rtol=0.03, atol=0)
    torch.testing.assert_close(found.mean(0), client.encode(X), atol=0.25, rtol=0)


def test_the_client_is_asked_in_eval_mode_and_left_in_its_own():
    client = Client(encoder(), Identity()).train()
    client.encoder[1].eval()  # a frozen batch norm inside a training network
    before = client.encoder[1].running_mean.clone()
    oracle = oracle_of(client)
    assert torch.equal(oracle.release(X, source=SeededSource(0)), oracle.release(X, source=SeededSource(1)))
    assert [part.training for part in client.encoder] == [True, False, True, True]
    assert torch.equal(client.encoder[1].running_mean, before)


def test_an_attacker_s_autocast_does_not_reach_the_client():
    client = Client(encoder(), Identity()).eval()
    plain = oracle_of(client).release(X, source=SeededSource(0))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(oracle_of(client).release(X, source=SeededSource(0)), plain)


def test_a_module_and_a_function_are_clients_too():
    module = encoder().eval()
    wanted = module(X).detach()
    for client in (module, module.__call__, lambda x: module(x).detach().numpy().astype(np.float64)):
        torch.testing.assert_close(oracle_of(client).release(X, source=SeededSource(0))[0], wanted)
    assert oracle_of(module).client is not None
    assert oracle_of(lambda x: module(x)).client is None


def test_randomness_is_found_out():
    module = encoder().eval()
    assert not oracle_of(module).is_random(X)
    assert oracle_of(Client(module, Gaussian(std=0.1))).is_random(X)
    assert not oracle_of(lambda x: module(x)).is_random(X)
    assert oracle_of(lambda x: module(x) + torch.rand(1)).is_random(X)


@pytest.mark.parametrize("answer", [torch.zeros(3, 4), torch.zeros(6), "features"])
def test_a_wrong_answer_is_told_in_one_line(answer):
    with pytest.raises(UsageError, match="must answer 6 images"):
        oracle_of(lambda x: answer).release(X, source=SeededSource(0))


def test_something_else_is_refused():
    with pytest.raises(UsageError, match="a Client, a module or a function"):
        oracle_of(3)


class Noisy(nn.Module):
    """Draws in eval mode too."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = x.flatten(1)
        return F.dropout(z, 0.5) if self.kind == "dropout" else z + 0.5 * torch.randn_like(z)


@pytest.mark.parametrize("kind", ["dropout", "normal"])
@pytest.mark.parametrize("mechanism", [Identity(), Gaussian(std=0.1)], ids=str)
def test_noise_that_an_encoder_draws_itself_is_drawn_anew_for_each_release_and_repeats(kind, mechanism):
    before = torch.random.get_rng_state()
    client = Client(Noisy(kind), mechanism)
    first = oracle_of(client).release(X, source=SeededSource(0), releases=40)
    again = oracle_of(client)
    assert again.is_random(X)
    assert torch.equal(again.release(X, source=SeededSource(0), releases=40), first)
    assert not torch.equal(again.release(X, source=SeededSource(1), releases=40), first)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert (first[0] != first[1]).any(1).all()
    torch.testing.assert_close(first.mean(0), X.flatten(1), atol=0.8, rtol=0)
    assert (first.mean(0) - X.flatten(1)).square().mean() < 0.05


@pytest.mark.parametrize("start", ["mean", "affine"])
def test_a_search_through_a_noisy_encoder_repeats_and_knows_the_noise(start):
    this = world(side=8, features=24)
    client = Client(nn.Sequential(Matrix(this.matrix), Noisy("normal")), Identity())
    oracle, before = oracle_of(client), torch.random.get_rng_state()
    known = grant(Threat(), oracle=oracle, auxiliary=this.part(300, 0, "a"), selection=this.part(60, 0, "s"))
    x = this.part(60, 0, "v").images()
    seen = Seen(oracle.release(x, source=SeededSource(1)))
    attack = OptimizationAttack(prior="gaussian", start=start, steps=60, n_tuned=24)
    found = attack.fit(known, seed=0)(seen)
    assert torch.equal(attack.fit(known, seed=0)(seen), found)
    assert torch.equal(torch.random.get_rng_state(), before)
    loud = replace(this, noise_std=0.5)
    assert mse(x, found).mean() < 1.15 * mse(x, loud.best_attack(seen)).mean()
    channel = channel_of(client, known.pairs.first(300, source=SeededSource(0)), loss="likelihood", draws=1, seed=0)
    assert channel.variance == pytest.approx(0.25, rel=0.1)


def test_an_audit_averages_what_a_module_adds_itself_and_repeats():
    this = world(side=8, features=24)
    module = nn.Sequential(Matrix(this.matrix), Noisy("normal"))
    suite = Suite("s", (Trial(Ridge(), Threat()), Trial(Averaged(Ridge(), 16), Threat(releases=16))))
    roles = split_roles(this.part(400, 0, "a").images())
    one, again = evaluate(module, suite, roles), evaluate(module, suite, roles)
    errors = [attack.mse.mean for attack in one.attacks]
    assert not one.not_played
    assert errors[1] < 0.9 * errors[0]
    assert errors == [attack.mse.mean for attack in again.attacks]
