"""Releases are taken together in the way that says most, and an attack behind them errs less for it."""

import pytest
import torch

from splitveil.attacks import (
    Averaged,
    DiffusionAttack,
    GeneratorAttack,
    OptimizationAttack,
    Ridge,
    Seen,
    Threat,
    grant,
    oracle_of,
)
from splitveil.attacks.averaging import telling
from splitveil.attacks.pairs import pooled
from splitveil.check import UsageError
from splitveil.mechanisms import Dropout, Gaussian, Identity, Laplace
from splitveil.metrics import mse
from splitveil.randomness import SeededSource, stream
from splitveil.split import Client
from worlds.linear_gaussian import Matrix, world

WORLD = world(side=8, features=48)
MEANT = {
    Gaussian(std=0.3): "mean",
    Laplace(scale=0.3): "median",
    Dropout(rate=0.3): "arrived",
    Dropout(rate=0.7): "arrived",
    Identity(): "mean",
}


def client(mechanism) -> Client:
    return Client(Matrix(WORLD.matrix), mechanism)


def released(mechanism, *, releases: int, key: str = "auxiliary", n: int = 600) -> tuple[torch.Tensor, torch.Tensor]:
    x = WORLD.part(n, 0, key).images()
    return x, oracle_of(client(mechanism)).release(x, source=SeededSource(0, key), releases=releases)


@pytest.mark.parametrize("mechanism", MEANT, ids=str)
def test_what_says_most_is_chosen(mechanism):
    assert telling(released(mechanism, releases=16)[1]) == MEANT[mechanism]


@pytest.mark.parametrize("mechanism", MEANT, ids=str)
@pytest.mark.parametrize("releases", [2, 3])
def test_it_is_the_mean_where_too_few_are_there_to_tell(mechanism, releases):
    assert telling(released(mechanism, releases=releases)[1]) == "mean"


@pytest.mark.parametrize("shape", [(16, 5, 3, 2, 2), (15, 4, 7)])
def test_pools_are_what_they_are_called(shape):
    z = torch.randn(shape, generator=stream(0, "z"))
    torch.testing.assert_close(pooled(z, "mean")[0], z.mean(0))
    torch.testing.assert_close(pooled(z, "median")[0], z.quantile(0.5, dim=0))
    torch.testing.assert_close(pooled(z, "arrived"), pooled(z, "mean"))
    assert pooled(torch.zeros(shape), "arrived").isfinite().all()


@pytest.mark.parametrize(
    "attack", [OptimizationAttack(), DiffusionAttack(), GeneratorAttack()], ids=lambda each: each.name
)
def test_who_hears_all_releases_by_itself_is_not_given_their_mean(attack):
    with pytest.raises(UsageError, match="hears all releases by itself: give its Threat the releases"):
        Averaged(attack, 4)


@pytest.mark.parametrize("releases", [15, 16])
def test_few_inputs_are_sorted_at_once_with_the_same_answer(releases, monkeypatch):
    z, sizes, sort = torch.randn(releases, 100, 3, 2, generator=stream(0, "z")), [], torch.Tensor.sort
    whole = z.sort(0).values[(releases - 1) // 2 : releases // 2 + 1].mean(0, keepdim=True)
    monkeypatch.setattr(torch.Tensor, "sort", lambda self, dim: sizes.append(self.shape[1]) or sort(self, dim))
    assert torch.equal(pooled(z, "median"), whole)
    assert sizes == [32, 32, 32, 4]


@pytest.mark.parametrize(("mechanism", "most"), [(Laplace(scale=0.5), 0.97), (Dropout(rate=0.5), 0.8)], ids=str)
def test_an_attack_errs_less_than_on_means(mechanism, most, monkeypatch):
    x, z_sent = released(mechanism, releases=16, key="victims")

    def error() -> float:
        parts = {role: WORLD.part(n, 0, role) for role, n in (("auxiliary", 1500), ("selection", 300))}
        known = grant(Threat(releases=16), oracle=oracle_of(client(mechanism)), **parts)
        return mse(x, Averaged(Ridge(), 16).fit(known, seed=0)(Seen(z_sent))).mean().item()

    chosen = error()
    monkeypatch.setattr("splitveil.attacks.averaging.telling", lambda z_sent: "mean")
    assert chosen < most * error()
