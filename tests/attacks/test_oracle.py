"""Oracles release what the client would send, and nothing else about it changes."""

import numpy as np
import pytest
import torch
from torch import nn

from splitveil.attacks import oracle_of
from splitveil.check import UsageError
from splitveil.mechanisms import Gaussian, Identity
from splitveil.randomness import SeededSource, stream
from splitveil.split import Client

X = torch.rand(6, 1, 8, 8, generator=stream(0, "x"))


def encoder() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Flatten(2))


def test_one_release_is_the_client_s_own_forward():
    client = Client(encoder(), Gaussian(std=0.3)).eval()
    found = oracle_of(client).release(X, source=SeededSource(1))
    torch.testing.assert_close(found[0], client(X, source=SeededSource(1)))


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
