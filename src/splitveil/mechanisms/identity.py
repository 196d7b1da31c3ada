"""No defense: z_sent = z."""

from typing import final

from splitveil.mechanisms.base import Mechanism, Noise
from splitveil.mechanisms.guarantee import Guarantee
from splitveil.types import Features, Sent


@final
class Identity(Mechanism):
    """Sends the features as they are."""

    name = "identity"

    def send(self, z: Features, noise: Noise) -> Sent:
        return Sent(z)

    def follow(self, known: Guarantee) -> Guarantee:
        return known

    def settings(self) -> dict[str, object]:
        return {}
