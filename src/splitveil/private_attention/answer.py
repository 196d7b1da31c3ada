"""What a query gets back, and when it is not to be trusted."""

from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor

LEAST_SNR = 2.0  # ‖o‖ below twice its standard error says little
LEAST_COUNT_SNR = 5.0  # last / its noise: below it the ratio is no longer close to normal
TOLERANCE = 1e-5  # a query this little beyond its bound is float32 rounding


class Answer(NamedTuple):
    """Attention answered from a private memory.

    `stderr` is the noise's standard error of each coordinate; `snr` = ‖output − value_center‖ / ‖stderr‖; `flagged`
    says not to trust the answer: low signal, a normalizer that may be noise, or a query beyond its bound (answered as
    if shortened to it).
    """

    output: Float[Tensor, "*batch dv"]
    stderr: Float[Tensor, "*batch dv"]
    snr: Float[Tensor, "*batch"]
    flagged: Bool[Tensor, "*batch"]
