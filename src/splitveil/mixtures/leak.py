"""What a density says about how much a noisy point tells of the clean one, in nats.

    z̃ = z + σn        L = log N(z̃; z, σ²I) − log q(z̃ | class)        E L ≥ I(z; z̃ | class)  for every density q

The mean over fresh points is I + E KL(true ‖ q): an upper bound for a q that was fitted to other points, and tight when
q is the true density of z̃.
"""

import math
from dataclasses import replace

from jaxtyping import Float, Int
from torch import Tensor

from splitveil.mixtures.gaussian import Mixture, log_density


def leak_nats(
    z: Float[Tensor, "member dim"],
    row: Int[Tensor, "member"],
    mixture: Mixture,
    noise: Float[Tensor, "member dim"],
    *,
    noise_var: float,
) -> Float[Tensor, "member"]:
    """log N(z + σn; z, σ²I) − log q(z + σn) of each member, for one draw of standard normal `noise`.

    Its mean over members the mixture was not fitted to, and over noise, bounds I(x; z_sent | y) from above.
    """
    dim = z.shape[1]
    channel = -0.5 * (noise.square().sum(-1) + dim * math.log(2 * math.pi * noise_var))
    return channel - log_density(z + noise_var**0.5 * noise, row, mixture, noise_var=noise_var)


def without_noise(mixture: Mixture, noise_var: float) -> Mixture:
    """A diagonal mixture that was fitted to noisy points, less the noise that `leak_nats` adds again."""
    assert mixture.covariance == "diagonal", "a full covariance would need its eigenvalues cut"
    return replace(mixture, var=(mixture.var - noise_var).clamp_min(0))
