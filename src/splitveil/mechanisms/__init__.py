"""What is done to z before it leaves the client: z → z_sent."""

from splitveil.mechanisms.base import Mechanism, Noise
from splitveil.mechanisms.chain import Chain
from splitveil.mechanisms.clip import Clip
from splitveil.mechanisms.guarantee import Guarantee
from splitveil.mechanisms.identity import Identity
from splitveil.mechanisms.noise import Gaussian, Laplace
from splitveil.mechanisms.quantize import Quantize
from splitveil.mechanisms.removal import Dropout, TopK
from splitveil.mechanisms.serialize import KINDS, from_settings, to_settings

__all__ = [
    "KINDS",
    "Chain",
    "Clip",
    "Dropout",
    "Gaussian",
    "Guarantee",
    "Identity",
    "Laplace",
    "Mechanism",
    "Noise",
    "Quantize",
    "TopK",
    "from_settings",
    "to_settings",
]
