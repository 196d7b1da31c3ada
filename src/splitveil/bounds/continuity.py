"""Whether features change as their Jacobian says. Where c jumps or gradients are made up, van Trees proves nothing.

    c without jumps, J its derivative   ⇒   c(x + hv/2) − c(x − hv/2) = ∫ J(x + tv) v dt,  −h/2 ≤ t ≤ h/2
    disagreement = Σ (wᵀΔ − wᵀ∫)² / Σ [(wᵀΔ)² + (wᵀ∫)²]           Δ, ∫: the two sides; w random signs; over images

0 where both sides agree and 1 where they have nothing in common. Kinks (ReLU, max-pool) cost next to nothing, since ∫
is read at several places of the path. Long paths find features that move where J says they rest (rounding), short ones
features that rest where J says they move (rounding with a straight-through gradient). All paths go through x + u, in
float64 where the encoder allows it: a short path in float32 would see nothing but rounding.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.bounds.channel import Channel
from splitveil.bounds.parts import some
from splitveil.bounds.smoothing import smoothed
from splitveil.data import Part
from splitveil.randomness import NoiseSource, SeededSource, stream
from splitveil.types import Images

# h, a path's length in each pixel, and how often J is read along it; a multiple of a grid's step would miss the grid
PLACES = {0.0931: 8, 0.0113: 2, 1.3e-4: 1}
COARSE = (0.0931, 0.0113)  # where only float32 is to be had
IMAGES = 64
WIDTH = 0.25  # of u: that of the smoothed bound
GROSS = 0.3  # the tests hold reference networks to an eighth of it, and what rounds to more than all of it

Encode = Callable[[Images], Tensor]

REASON = "van Trees needs features without jumps and their true gradients; this encoder's steps and gradients are"


def breaks(channel: Channel, part: Part, *, seed: int = 0) -> str | None:
    """Why J does not say how c moves near these images; None if it does."""
    worst = max(disagreements(channel, part, seed=seed).values())
    return f"{REASON} {worst:.0%} apart" if worst > GROSS else None


def disagreements(channel: Channel, part: Part, *, seed: int = 0) -> dict[float, float]:
    """By the length of the paths: 0 where features change as their Jacobian says, 1 where nothing of it is true."""
    chosen = some(part, IMAGES, stream(seed, "bounds", "continuity"))
    source = SeededSource(seed, "bounds", "continuity")
    x = smoothed(chosen.images(), WIDTH, source)
    found, x, steps = _doubled(channel, x)
    return {step: _disagreement(found, x, step, source) for step in steps}


def _doubled(channel: Channel, x: Images) -> tuple[Encode, Images, tuple[float, ...]]:
    """c and images in float64, and the steps that are seen so; as they are where the encoder knows float32 alone."""
    try:
        exact, fine = replace(channel, client=deepcopy(channel.client).double()), x.double()
        with torch.no_grad():
            if exact.unrounded(fine[:1]).dtype is torch.float64:
                return exact.unrounded, fine, tuple(PLACES)
    except (RuntimeError, TypeError, ValueError):  # no float64 on this device, or float32 written into the encoder
        pass
    return channel.unrounded, x, COARSE


def _disagreement(features: Encode, x: Images, step: float, source: NoiseSource) -> float:
    v = _signs(x, source)
    v[1::2] = v[1::2, :1, :1, :1]  # half of the paths make an image brighter or darker: networks hear little of grain
    with torch.no_grad():
        ends = features(x + step / 2 * v) - features(x - step / 2 * v)
    w = _signs(ends, source)
    moved = (w * ends).sum(1).double()
    places = [(place + 0.5) / PLACES[step] - 0.5 for place in range(PLACES[step])]
    told = step * torch.stack([_slope(features, x + step * t * v, v, w) for t in places]).mean(0)
    both = moved.square() + told.square()
    return float((moved - told).square().sum() / both.sum().clamp_min(torch.finfo(both.dtype).tiny))


def _slope(features: Encode, x: Images, v: Images, w: Tensor) -> Float[Tensor, " image"]:
    """wᵀJv at x, by the same backward pass that bounds use."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (pulled,) = torch.autograd.grad(features(x), x, w, materialize_grads=True, allow_unused=True)
    return (pulled * v).flatten(1).sum(1).double()


def _signs(like: Tensor, source: NoiseSource) -> Tensor:
    return 2.0 * (source.uniform(like.shape, device=like.device) < 0.5).to(like.dtype) - 1.0
