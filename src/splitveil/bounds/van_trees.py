"""The Bayesian Cramér–Rao bound of van Trees on the error of every attack.

    MSE ≥ 1/(E‖J‖_F²/(dσ²) + tr J_P/d)                     J = ∂c/∂x,   J_P = E ∇log p ∇log pᵀ of the inputs
    MSE ≥ (1/d) tr[(E JᵀJ/σ² + J_P)⁻¹]                     stronger; see `weighing` for how it is estimated honestly

Leaving J_P out is wrong: x uniform on [0, 1], c(x) = x, σ = ½ has Bayes MSE 0.062, and 1/(1/σ²) = 0.25. Images on a
grid have no density and no finite J_P, so there are three forms:

    known prior   J_P is given                                           proved
    smoothed      the input is x + u, u independent cos² noise of width w, J is taken at x + u and J_P ≼ 4π²/w² I:
                  proved, for the error on x + u. It is below Var u always: it says how much of u stays hidden
    raw           J_P is replaced by the least that the images' covariance allows: `asymptotic`, right as σ → 0

T releases: σ² becomes σ²/T.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.bounds.base import MSE, Bound, Kind, Side
from splitveil.bounds.channel import Channel, channel_of, roughness
from splitveil.bounds.continuity import breaks
from splitveil.bounds.gaussian_prior import GaussianWeighing, gaussian_weighing
from splitveil.bounds.jacobian import NO_GRADIENT, Probing, Pullbacks, has_gradient, pullbacks
from splitveil.bounds.parts import Parts, some
from splitveil.bounds.smoothing import prior_information, variance
from splitveil.bounds.weighing import Fixed, Prior, fit_weighing, identity
from splitveil.check import UsageError, at_least
from splitveil.data import Part
from splitveil.metrics import interval
from splitveil.randomness import stream
from splitveil.split import Client

WIDTH = 0.25  # of u: a standard deviation of 0.045. The same for every client, so that clients can be compared
WIDTHS = (0.05, 0.1, 0.25, 0.5)

Form = Literal["scalar", "trace"]

SMOOTH = "features change without jumps and autograd's Jacobian is their derivative"
SAMPLED = (SMOOTH, "the images are drawn as those it was read on", "the interval, over images, holds")


def scalar_bound(energy: float, *, dim: int, noise_var: float, prior: float) -> float:
    """1/(E‖J‖_F²/(dσ²) + tr J_P/d); `energy` is E‖J‖_F² and `prior` is tr J_P/d.

    >>> scalar_bound(1.0, dim=1, noise_var=0.25, prior=12.0)
    0.0625
    """
    return 1 / (energy / (dim * noise_var) + prior)


def trace_bound(gram: Float[Tensor, "pixel pixel"], *, noise_var: float, prior: Float[Tensor, "pixel pixel"]) -> float:
    """(1/d) tr[(E JᵀJ/σ² + J_P)⁻¹], for a `gram` E JᵀJ that is known and not estimated."""
    return float(torch.linalg.inv(gram.double() / noise_var + prior.double()).trace()) / len(gram)


@dataclass(frozen=True)
class Looks:
    """Jᵀv at the images to read, and at others that choose W: looked at once, whatever is asked of them."""

    channel: Channel
    width: float | None  # of the noise u that the images were smoothed with; None: at the images as they are
    read: Pullbacks
    choose: Float[Tensor, "direction chosen pixel"]
    images: Float[Tensor, "chosen channel height width"]  # those that choose, as they are


def look(client: Client, parts: Parts, probing: Probing | None = None) -> Looks:
    """Products with the Jacobians of a client. Its mechanism must add Gaussian noise to features without jumps."""
    probing = probing or Probing()
    reason = obstacle(client, parts.read, seed=probing.seed)
    if reason is not None:
        raise UsageError(reason)
    return look_unchecked(channel_of(client), parts, probing)


def obstacle(client: Client, part: Part, *, seed: int = 0) -> str | None:
    """Why Jacobians do not say what a client with Gaussian noise tells; None if nothing speaks against it."""
    reason = roughness(client.mechanism)
    if reason is not None:
        return reason
    channel = channel_of(client)
    return breaks(channel, part, seed=seed) if has_gradient(channel, part) else NO_GRADIENT


def look_unchecked(channel: Channel, parts: Parts, probing: Probing) -> Looks:
    """The same for a client that `obstacle` has nothing against."""
    read, choose = (
        some(part, probing.images, stream(probing.seed, "bounds", key))
        for key, part in (("read", parts.read), ("choose", parts.choose))
    )
    rows = pullbacks(channel, read, probing, "read")
    return Looks(channel, probing.width, rows, pullbacks(channel, choose, probing, "choose"), choose.images())


def known_prior(looks: Looks, prior: Prior, *, form: Form = "trace", releases: int = 1) -> Bound:
    """For inputs whose J_P is known (`prior`, or p where J_P ≼ p·I): proved, up to the sampling of E JᵀJ."""
    _at(looks, smoothed=False)
    holds_if = ("the images have a density with this Fisher information", *SAMPLED)
    words = (f"van Trees, {form}, given prior", MSE, Kind.SAMPLED, holds_if)
    return _bound(looks, _weigh(looks, prior, form, releases), releases, *words)


def smoothed(looks: Looks, *, form: Form = "trace", releases: int = 1) -> Bound:
    """For inputs x + u: proved, up to the sampling of E JᵀJ. Choose the width before looking, or by `choose_width`."""
    width = _at(looks, smoothed=True)
    about = (
        f"the input is x + u, u independent cos² noise of width {width:g} (variance {variance(width):.2g}) in a pixel"
    )
    holds_if = (about, "what is rebuilt is x + u, not x", *SAMPLED)
    words = (f"van Trees, {form}, smoothed", "MSE on x + u", Kind.SAMPLED, holds_if)
    return _bound(looks, _weigh(looks, prior_information(width), form, releases), releases, *words)


def raw(looks: Looks, *, releases: int = 1) -> Bound:
    """For the images as they are: asymptotic, with the least prior information that their covariance allows."""
    _at(looks, smoothed=False)
    std = looks.channel.std_after(releases)
    weighing = gaussian_weighing(looks.images, looks.choose.flatten(0, 1) / std)
    holds_if = (
        "the noise is small against the images' own spread",
        "the images have a smooth density, like a Gaussian",
        SMOOTH,
    )
    return _bound(looks, weighing, releases, "van Trees, trace, raw images", MSE, Kind.ASYMPTOTIC, holds_if)


def choose_width(
    client: Client, part: Part, widths: Sequence[float] = WIDTHS, *, releases: int = 1, probing: Probing | None = None
) -> float:
    """The width with the highest scalar bound on these images, which must not be those it is read on then."""
    parts, looked = Parts(part, part, part, 1), probing or Probing()
    bounds = {
        width: smoothed(look(client, parts, replace(looked, width=width)), form="scalar", releases=releases).value
        for width in widths
    }
    return max(bounds, key=lambda width: bounds[width])


def _at(looks: Looks, *, smoothed: bool) -> float:
    if smoothed is (looks.width is None):
        wanted = (
            "smoothed ones: look with Probing(width=…)" if smoothed else "the images as they are: look without width"
        )
        raise UsageError(f"this bound needs Jacobians at {wanted}")
    return looks.width or 0.0


def _weigh(looks: Looks, prior: Prior, form: Form, releases: int) -> Fixed:
    """W, chosen on other images than those it is read on."""
    if form == "scalar":
        return Fixed(identity(looks.read.shape[-1], looks.read), prior)
    half = looks.choose.shape[1] // 2
    if half == 0:
        raise UsageError("the trace form is chosen on at least 2 images, got 1; use form='scalar'")
    rows = looks.choose / looks.channel.std_after(releases)
    return Fixed(fit_weighing(rows[:, half:].flatten(0, 1), rows[:, :half].flatten(0, 1), prior), prior)


def _bound(
    looks: Looks,
    weighing: Fixed | GaussianWeighing,
    releases: int,
    name: str,
    quantity: str,
    kind: Kind,
    holds_if: tuple[str, ...],
) -> Bound:
    """The bound of this W: a falling function of one mean over images."""
    at_least("releases", releases, 1)
    span = interval(weighing.energies(looks.read / looks.channel.std_after(releases)).mean(0))
    value, low, high = (weighing.bound(energy) for energy in (span.mean, span.high, span.low))
    return Bound(name, quantity, value, Side.AT_LEAST, kind, holds_if, interval=(low, high), releases=releases)
