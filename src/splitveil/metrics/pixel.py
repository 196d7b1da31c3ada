"""Error of a reconstruction in pixels, one score per image.

    mse_i = mean_p (x_ip − x̂_ip)²        psnr_i = −10 log₁₀ mse_i        leak_i = 1 − mse_i / mse_prior

`mse_prior` is the error of an attacker that saw nothing and answers with the mean auxiliary image: leak 0 is nothing
learned, leak 1 is the picture itself. PSNR is taken per image and then averaged, never from a mean of errors.
"""

from jaxtyping import Float
from torch import Tensor

from splitveil.check import positive
from splitveil.types import Images

MSE_FLOOR = 1e-10  # an exact reconstruction has psnr 100 dB rather than infinity, so that means exist

Scores = Float[Tensor, "batch"]


def mse(x: Images, x_hat: Images) -> Scores:
    """Mean squared error of each image.

    >>> import torch
    >>> mse(torch.zeros(1, 1, 2, 2), torch.full((1, 1, 2, 2), 0.5))
    tensor([0.2500])
    """
    return (x - x_hat).square().flatten(1).mean(1)


def psnr(x: Images, x_hat: Images) -> Scores:
    """Peak signal-to-noise ratio of each image in dB, for pixels in [0, 1].

    Guarantees: at most 100 dB, which an exact reconstruction has.
    """
    return -10 * mse(x, x_hat).clamp_min(MSE_FLOOR).log10()


def leak(mse: Tensor | float, mse_prior: float) -> Tensor | float:
    """Share of the prior's squared error that the attack removed: 0 nothing learned, 1 exact, < 0 worse than no attack.

    >>> leak(0.015, 0.06)
    0.75
    """
    return 1 - mse / positive("mse_prior", mse_prior, hint="the auxiliary images must not all be alike")
