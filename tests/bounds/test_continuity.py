"""Features that jump, or whose gradients are made up, are found out; ordinary networks are not."""

import pytest
import torch
from torch import Tensor, nn

from splitveil.bounds import Parts, Probing, bounds_of, channel_of, look, missing, smoothed
from splitveil.bounds.continuity import COARSE, GROSS, breaks, disagreements
from splitveil.bounds.van_trees import look_unchecked
from splitveil.check import UsageError
from splitveil.data import Part
from splitveil.mechanisms import Chain, Clip, Gaussian
from splitveil.networks import REFERENCES
from splitveil.split import Bottleneck, Client, cut
from worlds.networks import Tokens, Written, seeded
from worlds.small import small_images


class Stairs(nn.Module):
    """floor(nx)/n + slope·x: autograd sees the slope alone."""

    def __init__(self, n: int, slope: float = 1e-3) -> None:
        super().__init__()
        self.n, self.slope = n, slope

    def forward(self, x: Tensor) -> Tensor:
        return torch.floor(self.n * x) / self.n + self.slope * x


class StraightThrough(nn.Module):
    """Rounding whose gradient is that of the identity."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def forward(self, x: Tensor) -> Tensor:
        return x + (torch.round(self.n * x) / self.n - x).detach()


class Single(nn.Module):
    """Knows float32 alone."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.float()).float()


def smooth_part(channels: int = 1, size: int = 16, n: int = 32) -> Part:
    coarse = torch.rand(n, channels, 4, 4, generator=torch.Generator().manual_seed(0))
    images = nn.functional.interpolate(coarse, size=size, mode="bilinear")
    return Part((255 * images).to(torch.uint8), torch.zeros(n, dtype=torch.int64))


def sends(encoder: nn.Module, std: float = 0.01) -> Client:
    return Client(encoder, Gaussian(std=std))


def behind(last: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 8), last)


JUMPING = {
    "stairs": Stairs(50),
    "coarse stairs": Stairs(4),
    "fine stairs": Stairs(255),
    "stairs on a ramp": Stairs(50, slope=0.5),
    "straight-through": StraightThrough(50),
    "straight-through, 8 bits": StraightThrough(255),
    "straight-through, 2000 steps": StraightThrough(2000),
    "few features, straight-through": behind(StraightThrough(8)),
    "few features, stairs": behind(Stairs(8, slope=0.1)),
    "float32 stairs": Single(Stairs(50)),
}


@pytest.mark.parametrize("name", JUMPING)
def test_features_that_jump_are_found_out(name: str) -> None:
    said = breaks(channel_of(sends(JUMPING[name])), smooth_part()) or ""
    assert said.startswith("van Trees needs features without jumps and their true gradients")


def test_a_bound_that_answering_with_z_would_beat_is_not_given():
    """What the check is for: the Jacobian of stairs says that nothing is told, and everything is."""
    client, parts = sends(Stairs(50)), Parts(*3 * [smooth_part(n=64)], n_classes=1)
    false = smoothed(look_unchecked(channel_of(client), parts, Probing(width=0.25)))
    x = smooth_part(n=64).images()
    z = client.encode(x) + 0.01 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    assert (z + 0.01 - x).square().mean() < 0.2 * false.safe
    with pytest.raises(UsageError, match="without jumps"):
        look(client, parts)
    assert not any("van Trees" in bound.name for bound in bounds_of(client, parts))
    assert any("without jumps" in line for line in missing(client, parts))


@pytest.mark.parametrize(
    "encoder",
    [
        behind(nn.ReLU()),
        behind(nn.Sigmoid()),
        nn.Sequential(nn.MaxPool2d(2), nn.Hardtanh(0.2, 0.8)),
        nn.Sequential(nn.Flatten(), nn.Linear(256, 1), nn.ReLU()),
        Single(behind(nn.ReLU())),
        nn.Flatten(),
    ],
)
def test_kinks_are_not_jumps(encoder: nn.Module) -> None:
    client = Client(encoder, Chain([Clip(radius=1.0), Gaussian(std=0.1)]))
    assert max(disagreements(channel_of(client), smooth_part()).values()) < GROSS / 8


@pytest.mark.parametrize("build", [Written, Tokens])
def test_networks_that_users_bring_are_not_refused(build: type[nn.Module]) -> None:
    assert max(disagreements(channel_of(sends(seeded(build))), smooth_part(3, 8)).values()) < GROSS / 8


@pytest.mark.parametrize("name", REFERENCES)
def test_reference_networks_are_not_refused(name: str) -> None:
    torch.manual_seed(0)
    reference = REFERENCES[name]
    size = max(16, reference.least_size)
    model = reference(n_classes=10, image_shape=(3, size, size))
    split = cut(
        model,
        after=reference.cut,
        bottleneck=Bottleneck(channels=8),
        mechanism=Gaussian(std=0.1),
        example=torch.zeros(2, 3, size, size),
    )
    assert max(disagreements(channel_of(split.client), smooth_part(3, size, n=12)).values()) < GROSS / 8


def test_an_encoder_of_float32_alone_is_looked_at_in_float32():
    found = disagreements(channel_of(sends(Single(behind(nn.Tanh())))), smooth_part())
    assert tuple(found) == COARSE
    assert max(found.values()) < 1e-4


def test_a_constant_encoder_does_not_jump():
    silent = nn.Sequential(nn.Flatten(), nn.Linear(256, 2))
    nn.init.zeros_(silent[1].weight)
    assert breaks(channel_of(sends(silent)), smooth_part()) is None


def test_the_client_is_left_as_it_was():
    client = sends(behind(nn.ReLU())).train()
    before = {name: value.clone() for name, value in client.state_dict().items()}
    first = disagreements(channel_of(client), smooth_part(), seed=3)
    assert disagreements(channel_of(client), smooth_part(), seed=3) == first
    assert client.training
    assert all(torch.equal(value, before[name]) for name, value in client.state_dict().items())


def test_an_encoder_without_gradients_is_told_so():
    class Cut(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.detach()

    client, data = sends(Cut()), small_images()
    assert not any("van Trees" in bound.name for bound in bounds_of(client, data))
    assert any("cuts them off" in line for line in missing(client, data))
