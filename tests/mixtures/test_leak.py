"""L of a density: equal to the information where the density is true, above it elsewhere."""

import math

import torch

from splitveil.mixtures import Mixture, leak_nats, without_noise

NOISE_VAR, N = 0.25, 40_000


def gaussian(mean: float, var: float) -> Mixture:
    return Mixture(torch.zeros(1, 1), torch.full((1, 1, 3), mean), torch.full((1, 1, 3), var))


def mean_leak(mixture: Mixture) -> tuple[float, float]:
    rng = torch.Generator().manual_seed(0)
    z, noise = math.sqrt(2.0) * torch.randn(N, 3, generator=rng), torch.randn(N, 3, generator=rng)
    each = leak_nats(z, torch.zeros(N, dtype=torch.int64), mixture, noise, noise_var=NOISE_VAR)
    return each.mean().item(), each.std().item() / math.sqrt(N)


def test_the_true_density_gives_the_information():
    found, error = mean_leak(gaussian(0.0, 2.0))
    assert abs(found - 1.5 * math.log(1 + 2.0 / NOISE_VAR)) < 3 * error


def test_another_density_gives_more():
    best, error = mean_leak(gaussian(0.0, 2.0))
    for other in (gaussian(0.5, 2.0), gaussian(0.0, 1.0), gaussian(0.0, 4.0)):
        assert mean_leak(other)[0] > best + 3 * error


def test_noise_that_was_fitted_along_is_taken_out_and_never_below_zero():
    clean = without_noise(gaussian(0.0, 2.25), NOISE_VAR)
    torch.testing.assert_close(clean.var, gaussian(0.0, 2.0).var)
    assert (without_noise(gaussian(0.0, 0.1), NOISE_VAR).var == 0).all()
