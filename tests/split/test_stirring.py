"""Noise of an encoder's own is found, repeats with its seed, and leaves torch's generators alone."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from splitveil.mechanisms import Gaussian, Identity
from splitveil.split import Client, encode_seeded, is_noisy

X = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))


class Stirred(nn.Module):
    """Drops features in eval mode too."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x.flatten(1), 0.5)


def test_only_noise_of_the_encoder_itself_counts() -> None:
    assert is_noisy(Client(Stirred(), Identity()), X)
    assert not is_noisy(Client(nn.Flatten(), Gaussian(std=1.0)), X)
    assert not is_noisy(Client(nn.Sequential(nn.Dropout(0.5), nn.Flatten()).train(), Identity()), X)


def test_it_repeats_with_its_seed_and_leaves_the_generators_alone() -> None:
    client, before = Client(Stirred(), Identity()), torch.get_rng_state()
    one, again, other = (encode_seeded(client, X, seed) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)
