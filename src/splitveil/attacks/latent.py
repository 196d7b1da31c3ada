"""Searching what a generator can paint.

first guess   u = (z_sent − mean) B,    B = least squares on pairs (u, z_sent of G(u)) that the attacker dreams up
restarts      the guess moved by a few fixed steps; kept is the image that explains what was seen best
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from splitveil.attacks.averaging import Averaged
from splitveil.attacks.base import Health, Inverter
from splitveil.attacks.canvas import Canvas, Energy, Moved
from splitveil.attacks.channel import Channel
from splitveil.attacks.knowledge import Knowledge
from splitveil.attacks.oracle import ClientOracle
from splitveil.attacks.pairs import Pairs, Seen
from splitveil.attacks.refinement import Searched
from splitveil.attacks.ridge import Ridge
from splitveil.randomness import SeededSource
from splitveil.types import Images

N_DREAMED = 2048  # painted images that the first guess is fitted on
CHUNK = 256  # of them painted at once
DAMPING = 1e-2  # of that fit, in units of a feature's mean variance
FARTHEST = 2.0  # standard deviations that a guess goes from the mean in any coordinate


@final
@dataclass(frozen=True)
class LatentCanvas(Canvas):
    """What a generator can paint."""

    network: nn.Module
    latent: int

    @property
    def size(self) -> int:
        return self.latent

    def paint(self, base: Images, v: Moved) -> Images:
        painted: Tensor = self.network(v)
        return painted

    def charge(self, x: Images, v: Moved) -> Energy:
        return 0.5 * v.square().sum(1)


@dataclass(frozen=True)
class Guess:
    """An affine map from what was seen to u, moved by `shift`."""

    mean: Float[Tensor, " dim"]
    weight: Float[Tensor, "dim latent"]
    shift: Float[Tensor, " latent"]

    def __call__(self, seen: Seen) -> Float[Tensor, "batch latent"]:
        centered = seen.z_sent.mean(0).flatten(1) - self.mean
        return (centered @ self.weight).clamp(-FARTHEST, FARTHEST) + self.shift


@torch.no_grad()
def guess_latent(network: nn.Module, latent: int, channel: Channel, *, seed: int) -> Guess:
    """The best affine guess at u."""
    device = next(network.parameters()).device
    source = SeededSource(seed, "dreams")
    u = source.normal((N_DREAMED, latent), device=device)
    z = torch.cat([_release(channel, network(part), source) for part in torch.split(u, CHUNK)]).double()
    mean = z.mean(0)
    centered = z - mean
    is_tall = centered.shape[1] <= len(centered)  # the smaller of two systems that give the same answer
    system = centered.T @ centered if is_tall else centered @ centered.T
    system.diagonal().add_(DAMPING * len(centered) * centered.square().mean() + torch.finfo(torch.float32).tiny)
    right = centered.T @ u.double() if is_tall else u.double()
    solved: Tensor = torch.linalg.solve(system, right)
    weight = solved if is_tall else centered.T @ solved
    return Guess(mean.float(), weight.float(), torch.zeros(latent, device=device))


def _release(channel: Channel, x: Images, source: SeededSource) -> Float[Tensor, "batch dim"]:
    """What the client sends of painted images, noise and all."""
    return ClientOracle(channel.client).release(x, source=source)[0].flatten(1)


def fit_affine(known: Knowledge, releases: int, seed: int) -> Inverter:
    """The best affine reconstruction of (the mean of) this many releases."""
    attack = Ridge() if releases == 1 else Averaged(Ridge(), releases)
    return attack.fit(known, seed=seed)


@final
class Restarted(Inverter):
    """Several searches for the same; of each input, the image that explains best what was seen."""

    def __init__(self, searches: list[Searched], channel: Channel) -> None:
        self._searches, self._channel = searches, channel

    @property
    def health(self) -> Health:
        return self._searches[0].health

    def inputs_at_once(self, seen: Seen) -> int:
        """How many are searched together, of what was seen like this."""
        return self._searches[0].search.inputs_at_once(seen)

    def __call__(self, seen: Seen) -> Images:
        found = [search(seen) for search in self._searches]
        heard = self._channel.hear(seen.z_sent)
        with torch.no_grad():
            misfits = torch.stack([self._channel.misfit(x_hat, heard) for x_hat in found])
        each = torch.arange(found[0].shape[0], device=misfits.device)
        return torch.stack(found)[misfits.argmin(0), each]


@final
class Calibrated(Inverter):
    """x̂ = mean_x + Σ_k α_k (x̂_k − mean_x̂_k), α by least squares: each inverter as far as it can be trusted.

    `own` are images of the attacker's that no inverter was fitted to.
    """

    def __init__(self, inverters: list[Inverter], own: Pairs) -> None:
        self._inverters, self._mean = inverters, own.x.mean(0)
        painted = torch.stack([inverter(own.seen) for inverter in inverters])
        self._means = painted.mean(1, keepdim=True)
        moved, wanted = (painted - self._means).flatten(1).double(), (own.x - self._mean).flatten().double()
        system = moved @ moved.T
        system.diagonal().add_(DAMPING * system.diagonal().mean() + torch.finfo(torch.float32).tiny)
        self._trust: Tensor = torch.linalg.solve(system, moved @ wanted).float()
        self.gaps = own.x - self._trusted(painted)  # what is still lacking, on the attacker's own images

    @property
    def health(self) -> Health:
        return self._inverters[0].health

    def __call__(self, seen: Seen) -> Images:
        return self._trusted(torch.stack([inverter(seen) for inverter in self._inverters]))

    def _trusted(self, painted: Float[Tensor, "inverter batch channel height width"]) -> Images:
        moved = torch.einsum("k,kbchw->bchw", self._trust, painted - self._means)
        return (self._mean + moved).clamp(0, 1)
