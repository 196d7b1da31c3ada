"""How likely what was seen is, given an image: what every white-box attack descends.

    misfit(x) = −log p(z_sent | x) + const = Σ_t Σ_i −log mean_k exp(−(m_k(f(x))_i − z_sent_ti)² / 2s²)

f is the encoder in eval mode. m_k is the mechanism with its additive noise left out (s stands for it) and everything
else random in it drawn for the k-th time, the same for all inputs. Without such a part one m says it all and the sum
over releases is T ‖m(f(x)) − z̄‖² / 2s². With dropout a coordinate that arrived as 0 is explained by a draw that dropped
it, so it does not pull x anywhere: the mean stands inside the logarithm.

That is for normal noise. Of Laplace noise no mean says it all: each release counts, and outliers pull no harder than
others do,

    misfit(x) = Σ_t Σ_i |m(f(x))_i − z_sent_ti| / b        rounded within 0.05 b of 0, where it has no slope

and with dropout −|…|/b stands in the exponent. Variance from elsewhere, another part of a chain or `more`, is convolved
with it (`laplace.py`). `more` is common to T releases, and where each of them counts it counts T-fold in each: for
normal noise that is what it does to their mean.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.attacks.laplace import laplace_scale, surprise
from splitveil.attacks.oracle import Releases
from splitveil.mechanisms import Chain, Gaussian, Laplace, Mechanism, Noise
from splitveil.randomness import NoiseSource, SeededSource
from splitveil.split import Client, evaluating
from splitveil.types import Features, Images

EXACT = 0.03  # s of a client without additive noise, in standard deviations of its features
COPIES = 4  # of features (each draw of them against each release), held at once
IMPOSSIBLE = -1e6  # log likelihood of a draw that cannot be what happened

Loss = Literal["likelihood", "features"]
Misfit = Float[Tensor, " batch"]


@dataclass(frozen=True)
class Heard:
    """Releases as the likelihood needs them: their mean where that says it all, otherwise each of them."""

    z_sent: Releases
    count: int  # releases that each of them stands for
    repeated: Tensor | None = None  # inputs, each as often as wanted: many releases are not copied for that

    def rows(self, rows: slice | Tensor) -> "Heard":
        """The same for some of the inputs."""
        if self.repeated is not None:
            return Heard(self.z_sent, self.count, self.repeated[rows])
        if isinstance(rows, Tensor) and len(self.z_sent) > 1:
            return Heard(self.z_sent, self.count, rows)
        return Heard(self.z_sent[:, rows], self.count)

    def whole(self) -> Releases:
        """All that was heard, repeated."""
        return self.z_sent if self.repeated is None else self.z_sent[:, self.repeated]

    def each(self) -> Iterator[Features]:
        """One after another, the same."""
        return (z if self.repeated is None else z[self.repeated] for z in self.z_sent)

    def __len__(self) -> int:
        return self.z_sent.shape[1] if self.repeated is None else len(self.repeated)


@dataclass(frozen=True)
class Channel:
    """The path from an image to what is seen of it."""

    client: Client
    variance: float  # s²
    draws: int = 1  # of what is random beside additive noise
    seed: int = 0
    scale: float = 0.0  # b of the Laplace noise that s² holds; 0: all of s² is normal

    def hear(self, z_sent: Releases) -> Heard:
        """What `misfit` compares with."""
        if self.scale or is_scattered(self.client.mechanism):
            return Heard(z_sent, 1)
        return Heard(z_sent.mean(0, keepdim=True), len(z_sent))

    def n_held(self, z_sent: Releases) -> int:
        """Numbers held at once for one image's misfit, about; the encoder's own are beside these."""
        each = z_sent[0, 0].numel()
        if is_scattered(self.client.mechanism):
            return COPIES * each * self.draws * len(z_sent)
        return each * (2 * COPIES + len(z_sent)) if self.scale else COPIES * each

    def encode(self, x: Images) -> Features:
        """f(x) as deployed: eval mode, its own precision. Gradients pass to x."""
        with evaluating(self.client), torch.autocast(x.device.type, enabled=False):
            return self.client.encode(x)

    def expect(self, x: Images) -> Features:
        """What is sent of these images, its additive noise left out; where more is random, what would be sent.

        A feature that one draw drops is none that images agree in.
        """
        z = self.encode(x)
        return z if is_scattered(self.client.mechanism) else self._send(z, ())

    def misfit(self, x: Images, heard: Heard, *, step: int = 0, more: Tensor | float = 0.0) -> Misfit:
        """−log likelihood of each image; `more` is variance beside s², per feature or for all."""
        z, variance = self.encode(x), self.variance / heard.count + len(heard.z_sent) * more
        if not is_scattered(self.client.mechanism):
            if self.scale:
                return self._laplace_misfit(self._send(z, ()), heard, more)
            return ((self._send(z, ()) - heard.z_sent[0]).square() / (2 * variance)).flatten(1).sum(1)
        source = SeededSource(self.seed, "mechanism", step)
        drawn = draw_scatter(self.client.mechanism, (self.draws, *z.shape[1:]), source, device=z.device)
        sent = torch.stack([self._send(z, tuple(part[k : k + 1] for part in drawn)) for k in range(self.draws)])
        gap = sent[:, None] - heard.whole()  # draw, release, batch, features
        if self.scale:
            fits = -_with_slope(gap, *surprise(gap, self.scale, self._beside(len(heard.z_sent), more)))
        else:
            fits = -gap.square() / (2 * variance)
        if not self.client.mechanism.noise_std:  # what was dropped arrives as exactly 0, and nothing else does
            fits = fits.masked_fill((sent[:, None] == 0) != (heard.whole() == 0), IMPOSSIBLE)
        return -fits.logsumexp(0).transpose(0, 1).flatten(1).sum(1)

    def _laplace_misfit(self, sent: Features, heard: Heard, more: Tensor | float) -> Misfit:
        """Release by release, each forgotten as soon as it is counted: as much is held for 64 of them as for one."""
        total, slope = torch.zeros_like(sent), torch.zeros_like(sent)
        for z_sent in heard.each():
            value, rise = surprise(sent.detach() - z_sent, self.scale, self._beside(len(heard.z_sent), more))
            total, slope = total + value, slope + rise
        return _with_slope(sent, total, slope).flatten(1).sum(1)

    def _beside(self, releases: int, more: Tensor | float) -> Tensor | float:
        """Variance beside the Laplace noise, in each release."""
        return releases * more + max(self.variance - 2 * self.scale**2, 0.0)

    def _send(self, z: Features, drawn: Noise) -> Features:
        noise = drawn or draw_scatter(self.client.mechanism, (1, *z.shape[1:]), _Silence(), device=z.device)
        return self.client.mechanism.send(z, tuple(part.expand_as(z) for part in noise))


def channel_of(client: Client, z_sent: Releases, *, loss: Loss, draws: int, seed: int) -> Channel:
    """The channel of a client; `z_sent` are releases of the attacker's own images, for the units.

    `features` knows no noise: s is the features' own standard deviation, and all depends on a prior's weight.
    """
    std = z_sent[0].std(0).square().mean().sqrt().item()
    known = client.mechanism.noise_std or EXACT * std
    unit = known if loss == "likelihood" else std
    scale = laplace_scale(client.mechanism) if loss == "likelihood" else 0.0
    return Channel(client, max(unit, torch.finfo(torch.float32).tiny ** 0.5) ** 2, draws, seed, scale)


def is_scattered(mechanism: Mechanism) -> bool:
    """Whether anything but additive noise is random in it.

    >>> is_scattered(Gaussian(std=0.1))
    False
    """
    if isinstance(mechanism, Chain):
        return any(is_scattered(part) for part in mechanism)
    return mechanism.is_random and not isinstance(mechanism, Gaussian | Laplace)


def draw_scatter(mechanism: Mechanism, shape: tuple[int, ...], source: NoiseSource, *, device: torch.device) -> Noise:
    """The mechanism's noise with every additive part at zero."""
    if isinstance(mechanism, Chain):
        return tuple(part for each in mechanism for part in draw_scatter(each, shape, source, device=device))
    drawn = mechanism.draw(shape, source, device=device)
    return tuple(map(torch.zeros_like, drawn)) if isinstance(mechanism, Gaussian | Laplace) else drawn


def _with_slope(at: Tensor, value: Tensor, slope: Tensor) -> Tensor:
    """`value`, whose gradient to `at` is `slope`."""
    return value + slope * (at - at.detach())


class _Silence(NoiseSource):
    """Zeros, for mechanisms whose draws are all additive."""

    def normal(self, shape: object, *, device: torch.device) -> Tensor:
        return torch.zeros(tuple(shape), device=device)  # type: ignore[arg-type]

    def uniform(self, shape: object, *, device: torch.device) -> Tensor:
        return torch.zeros(tuple(shape), device=device)  # type: ignore[arg-type]
