"""The Bayesian Cramér–Rao bound of van Trees on the error of every attack.

    MSE ≥ 1/(E‖J‖_F²/(dσ²) + tr J_P/d)                     J = ∂c/∂x,   J_P = E ∇log p ∇log pᵀ of the inputs
    MSE ≥ (1/d) tr[(E JᵀJ/σ² + J_P)⁻¹]                     stronger; see `weighing` for how it is estimated honestly

Leaving J_P out is wrong: x uniform on [0, 1], c(x) = x, σ = ½ has Bayes MSE 0.062, and 1/(1/σ²) = 0.25. Images on a
grid have no density and no finite J_P, so there are three forms:

    known prior   J_P is given                                           proved
    smoothed      the input is x + u, u independent cos² noise of width w, J is taken at x + u and J_P ≼ 4π²/w² I:
                  proved, for the error on x + u. It is below Var u always: it says how much of u stays hidden
    raw           J_P is replaced by the least that the images' variance allows: `asymptotic`, right as σ → 0

T releases: σ² becomes σ²/T.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.bounds.base import MSE, Bound, Kind, Side
from splitveil.bounds.channel import Channel, channel_of, roughness
from splitveil.bounds.jacobian import Probing, pullbacks
from splitveil.bounds.parts import Parts, some
from splitveil.bounds.smoothing import prior_information
from splitveil.bounds.weighing import Prior, Weighing, fit_weighing, identity
from splitveil.check import UsageError, at_least, positive
from splitveil.data import Part
from splitveil.metrics import interval
from splitveil.randomness import stream
from splitveil.split import Client

WIDTH = 0.25  # of u: a standard deviation of 0.045. The same for every client, so that clients can be compared
WIDTHS = (0.05, 0.1, 0.25, 0.5)

Form = Literal["scalar", "trace"]

SAMPLED = ("the images are drawn as those it was read on", "the interval, over images, holds")


def scalar_bound(energy: float, *, dim: int, noise_var: float, prior: float) -> float:
    """1/(E‖J‖_F²/(dσ²) + tr J_P/d); `energy` is E‖J‖_F² and `prior` is tr J_P/d.

    >>> scalar_bound(1.0, dim=1, noise_var=0.25, prior=12.0)
    0.0625
    """
    return 1 / (energy / (dim * noise_var) + prior)


def trace_bound(gram: Float[Tensor, "pixel pixel"], *, noise_var: float, prior: Float[Tensor, "pixel pixel"]) -> float:
    """(1/d) tr[(E JᵀJ/σ² + J_P)⁻¹], for a `gram` E JᵀJ that is known and not estimated."""
    return float(torch.linalg.inv(gram.double() / noise_var + prior.double()).trace()) / len(gram)


def known_prior(
    client: Client,
    parts: Parts,
    prior: Prior,
    *,
    form: Form = "trace",
    releases: int = 1,
    probing: Probing | None = None,
) -> Bound:
    """For inputs whose J_P is known (`prior`, or p where J_P ≼ p·I): proved, up to the sampling of E JᵀJ."""
    value, ends = _estimate(client, parts, prior, form, releases, probing or Probing())
    holds_if = ("the images have a density with this Fisher information", *SAMPLED)
    return _bound(f"van Trees, {form}, given prior", MSE, value, ends, Kind.SAMPLED, holds_if, releases)


def smoothed(
    client: Client,
    parts: Parts,
    *,
    width: float = WIDTH,
    form: Form = "trace",
    releases: int = 1,
    probing: Probing | None = None,
) -> Bound:
    """For inputs x + u: proved, up to the sampling of E JᵀJ. Choose `width` before looking, or by `choose_width`."""
    positive("width", width)
    looked = replace(probing or Probing(), width=width)
    value, ends = _estimate(client, parts, prior_information(width), form, releases, looked)
    about = f"the input is x + u, u independent cos² noise of width {width:g} in each pixel"
    holds_if = (about, "what is rebuilt is x + u, not x", *SAMPLED)
    return _bound(f"van Trees, {form}, smoothed", "MSE on x + u", value, ends, Kind.SAMPLED, holds_if, releases)


def choose_width(
    client: Client, part: Part, widths: Sequence[float] = WIDTHS, *, releases: int = 1, probing: Probing | None = None
) -> float:
    """The width with the highest scalar bound on these images, which must not be those it is read on then."""
    parts = Parts(part, part, part, 1)
    bounds = {
        width: smoothed(client, parts, width=width, form="scalar", releases=releases, probing=probing).value
        for width in widths
    }
    return max(bounds, key=lambda width: bounds[width])


def raw(client: Client, parts: Parts, *, releases: int = 1, probing: Probing | None = None) -> Bound:
    """For the images as they are: asymptotic. Any density with their variance v has tr J_P/d ≥ 1/v; it is put in."""
    looked = probing or Probing()
    variance = float(_read(parts, looked).images().var(0, correction=0).mean())
    prior = 1 / max(variance, torch.finfo(torch.float32).tiny)
    value, ends = _estimate(client, parts, prior, "scalar", releases, looked)
    holds_if = ("the noise is small against the images' own spread", "the images have a smooth density")
    return _bound("van Trees, scalar, raw images", MSE, value, ends, Kind.ASYMPTOTIC, holds_if, releases)


def _estimate(
    client: Client, parts: Parts, prior: Prior, form: Form, releases: int, probing: Probing
) -> tuple[float, tuple[float, float]]:
    """Value and interval, of a W that was chosen on other images than those it is read on."""
    at_least("releases", releases, 1)
    reason = roughness(client.mechanism)
    if reason is not None:
        raise UsageError(reason)
    channel = channel_of(client)
    std = channel.std_after(releases)
    rows = pullbacks(channel, _read(parts, probing), probing, "read") / std
    weighing = identity(rows.shape[-1], rows) if form == "scalar" else _weigh(channel, parts, prior, std, probing)
    span = interval(weighing.apply(rows).square().sum(-1).mean(0))
    low, high = (weighing.bound(energy, prior) for energy in (span.high, span.low))
    return weighing.bound(span.mean, prior), (low, high)


def _read(parts: Parts, probing: Probing) -> Part:
    return some(parts.read, probing.images, stream(probing.seed, "bounds", "read"))


def _weigh(channel: Channel, parts: Parts, prior: Prior, std: float, probing: Probing) -> Weighing:
    chosen = some(parts.choose, probing.images, stream(probing.seed, "bounds", "choose"))
    if len(chosen) < 2:
        raise UsageError(f"the trace form is chosen on at least 2 images, got {len(chosen)}; use form='scalar'")
    rows = pullbacks(channel, chosen, probing, "choose") / std
    half = len(chosen) // 2
    return fit_weighing(rows[:, half:].flatten(0, 1), rows[:, :half].flatten(0, 1), prior)


def _bound(
    name: str,
    quantity: str,
    value: float,
    interval: tuple[float, float],
    kind: Kind,
    holds_if: tuple[str, ...],
    releases: int,
) -> Bound:
    return Bound(name, quantity, value, Side.AT_LEAST, kind, holds_if, interval=interval, releases=releases)
