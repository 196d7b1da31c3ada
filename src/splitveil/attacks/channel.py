"""How likely what was seen is, given an image: what every white-box attack descends.

    misfit(x) = −log p(z_sent | x) + const = Σ_t Σ_i −log mean_k exp(−(c_ti m_k(f(x))_i − z_sent_ti)² / 2s²)

f is the encoder in eval mode, m all of the mechanism but the dropouts and top-ks at its end (`wire.py`). Those are
seen: c is 1 where z_sent is not 0, or where top-k would keep m(f(x)), and 0 elsewhere, so that what was dropped pulls x
nowhere, and what arrived pulls it wherever x lies. Without a removal c = 1.

m_k leaves additive noise out (s stands for it) and draws everything else that is random for the k-th time, the same for
all inputs. Without such a part one m says it all and, with c = 1, the sum over releases is T ‖m(f(x)) − z̄‖² / 2s². A
dropout under noise cannot be seen: a coordinate that arrived near 0 is explained by a draw that dropped it, so it does
not pull either: the mean stands inside the logarithm.

Where something in m follows the noise (a clip, a quantizer) its size is no longer the mechanism's, and neither is its
mean: m_k is then the mean of what is sent with its noise and with its mirror image, and without other randomness m is
the mean of the m_k, the same at every step. s is measured: s² = ½ E (difference of two)², which differ in noise alone.

An encoder that draws noise of its own draws anew at each step, by its number, and s is measured with that noise too:
the descent is on its mean, as far as the noise adds to f.

That is for normal noise. Of Laplace noise no mean says it all: each release counts, and outliers pull no harder than
others do,

    misfit(x) = Σ_t Σ_i |m(f(x))_i − z_sent_ti| / b        rounded within 0.05 b of 0, where it has no slope

and with dropout −|…|/b stands in the exponent; where something follows it, it counts as normal. Variance from
elsewhere, another part of a chain or `more`, is convolved with it (`laplace.py`). `more` is common to T releases, and
where each of them counts it counts T-fold in each: for normal noise that is what it does to their mean.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.attacks.laplace import laplace_scale, surprise
from splitveil.attacks.oracle import Releases
from splitveil.attacks.pairs import Pairs
from splitveil.attacks.wire import Wire, wire_of
from splitveil.randomness import NoiseSource, SeededSource, derive
from splitveil.split import Client, encode_seeded, evaluating, is_noisy
from splitveil.types import Features, Images

EXACT = 0.03  # s of a client without additive noise, in standard deviations of its features
COPIES = 4  # of features (each draw of them against each release), held at once
IMPOSSIBLE = -1e6  # log likelihood of a draw that cannot be what happened
N_MEASURED = 256  # of the attacker's own images, for s where it has to be measured

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
    is_noisy: bool = False  # the encoder draws noise of its own

    @cached_property
    def wire(self) -> Wire:
        """Its mechanism, taken apart."""
        return wire_of(self.client.mechanism)

    @property
    def is_drawn(self) -> bool:
        """Whether a misfit is itself drawn at random, anew at each step."""
        return self.is_noisy or self.wire.is_scattered

    def hear(self, z_sent: Releases) -> Heard:
        """What `misfit` compares with."""
        if self.scale or self.wire.removals or self.wire.is_scattered:
            return Heard(z_sent, 1)
        return Heard(z_sent.mean(0, keepdim=True), len(z_sent))

    def n_held(self, z_sent: Releases) -> int:
        """Numbers held at once for one image's misfit, about; the encoder's own are beside these."""
        each = z_sent[0, 0].numel()
        drawn = COPIES * each * self.draws if self.wire.is_followed else 0
        if self.wire.is_scattered:
            return drawn + COPIES * each * self.draws * len(z_sent)
        is_each = self.scale or self.wire.removals
        return drawn + (each * (2 * COPIES + len(z_sent)) if is_each else COPIES * each)

    def encode(self, x: Images, step: int = 0) -> Features:
        """f(x) as deployed: eval mode, its own precision. Gradients pass to x. Noise of its own is that of `step`."""
        if self.is_noisy:
            return encode_seeded(self.client, x, derive(self.seed, "encoder", step))
        with evaluating(self.client), torch.autocast(x.device.type, enabled=False):
            return self.client.encode(x)

    def expect(self, x: Images) -> Features:
        """What is sent of these images, its additive noise left out; where more is random, what would be sent.

        A feature that one draw drops is none that images agree in.
        """
        z = self.encode(x)
        return z if self.wire.is_scattered else self._send(z)

    def misfit(self, x: Images, heard: Heard, *, step: int = 0, more: Tensor | float = 0.0) -> Misfit:
        """−log likelihood of each image; `more` is variance beside s², per feature or for all."""
        z, wire = self.encode(x, step), self.wire
        if wire.is_scattered:
            return self._scattered_misfit(z, heard, step, more)
        if self.scale or wire.removals:
            return self._each_misfit(self._send(z), heard, more)
        variance = self.variance / heard.count + len(heard.z_sent) * more
        return ((self._send(z) - heard.z_sent[0]).square() / (2 * variance)).flatten(1).sum(1)

    def _scattered_misfit(self, z: Features, heard: Heard, step: int, more: Tensor | float) -> Misfit:
        sent, z_sent = self._draw(z, step)[:, None], heard.whole()
        if self.wire.removals:
            sent = sent * (z_sent != 0)
        gap = sent - z_sent  # draw, release, batch, features
        if self.scale:
            fits = -_with_slope(gap, *self._surprise(gap, len(z_sent), more))
        else:
            fits = -gap.square() / (2 * (self.variance / heard.count + len(heard.z_sent) * more))
        if self.wire.shows_zeros:
            fits = fits.masked_fill((sent == 0) != (z_sent == 0), IMPOSSIBLE)
        return -fits.logsumexp(0).transpose(0, 1).flatten(1).sum(1)

    def _each_misfit(self, sent: Features, heard: Heard, more: Tensor | float) -> Misfit:
        """Release by release, each forgotten as soon as it is counted: as much is held for 64 of them as for one."""
        total, slope, fixed = torch.zeros_like(sent), torch.zeros_like(sent), sent.detach()
        wanted = self.wire.wanted(fixed) if self.wire.removals else None
        for z_sent in heard.each():
            compared = self.wire.compared(z_sent, wanted)
            expected = fixed if compared is None else fixed * compared
            value, rise = self._surprise(expected - z_sent, len(heard.z_sent), more)
            total, slope = total + value, slope + (rise if compared is None else rise * compared)
        return _with_slope(sent, total, slope).flatten(1).sum(1)

    @torch.no_grad()
    def _surprise(self, gap: Tensor, releases: int, more: Tensor | float) -> tuple[Tensor, Tensor]:
        """−log likelihood of each gap, and its slope."""
        if self.scale:
            return surprise(gap, self.scale, self._beside(releases, more))
        variance = self.variance + releases * more
        return gap.square() / (2 * variance), gap / variance

    def _beside(self, releases: int, more: Tensor | float) -> Tensor | float:
        """Variance beside the Laplace noise, in each release."""
        return releases * more + max(self.variance - 2 * self.scale**2, 0.0)

    def _send(self, z: Features) -> Features:
        """m(z), where nothing but additive noise is random."""
        if self.wire.is_followed:
            return self._draw(z, 0).mean(0)
        return self.wire.send(z, self.wire.draw((1, *z.shape[1:]), _Silence(), device=z.device))

    def _draw(self, z: Features, step: int) -> Float[Tensor, "draw batch *feature"]:
        """Every m_k(z)."""
        source = SeededSource(self.seed, "mechanism", step)
        drawn = self.wire.draw((self.draws, *z.shape[1:]), source, device=z.device)
        return torch.stack([self.wire.send(z, tuple(part[k : k + 1] for part in drawn)) for k in range(self.draws)])

    @torch.no_grad()
    def measured(self, x: Images) -> "Channel":
        """The same with s² as these images have it: half the mean square between two that differ in noise alone."""
        source, before = SeededSource(self.seed, "measured"), self.wire.before
        z, again = self.encode(x), self.encode(x, step=1)
        first, second = (before.draw(z.shape, source, device=z.device) for _ in range(2))
        one, other = before.send(z, first), before.send(again, self.wire.renew(first, second))
        return replace(self, variance=max((one - other).square().mean().item() / 2, self.variance))


def channel_of(client: Client, own: Pairs, *, loss: Loss, draws: int, seed: int) -> Channel:
    """The channel of a client; `own` are images of the attacker's and what is sent of them, for the units.

    `features` knows no noise: s is the features' own standard deviation, and all depends on a prior's weight.
    """
    std = own.seen.z_sent[0].std(0).square().mean().sqrt().item()
    wire, tiny, noisy = wire_of(client.mechanism), torch.finfo(torch.float32).tiny ** 0.5, is_noisy(client, own.x)
    if loss == "features":
        return Channel(client, max(std, tiny) ** 2, draws, seed, is_noisy=noisy)
    if wire.is_followed or noisy:
        exact = Channel(client, max(EXACT * std, tiny) ** 2, draws, seed, is_noisy=noisy)
        return exact.measured(own.x[:N_MEASURED])
    unit = wire.before.noise_std or EXACT * std
    return Channel(client, max(unit, tiny) ** 2, draws, seed, laplace_scale(wire.before))


def _with_slope(at: Tensor, value: Tensor, slope: Tensor) -> Tensor:
    """`value`, whose gradient to `at` is `slope`."""
    return value + slope * (at - at.detach())


class _Silence(NoiseSource):
    """Zeros, for mechanisms whose draws are all additive."""

    def normal(self, shape: object, *, device: torch.device) -> Tensor:
        return torch.zeros(tuple(shape), device=device)  # type: ignore[arg-type]

    def uniform(self, shape: object, *, device: torch.device) -> Tensor:
        return torch.zeros(tuple(shape), device=device)  # type: ignore[arg-type]
