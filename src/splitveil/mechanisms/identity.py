"""No defense: z_sent = z."""

from typing import final

from splitveil.mechanisms.base import Mechanism, Noise
from splitveil.mechanisms.guarantee import Guarantee
from splitveil.types import Features, Sent


@final
class Identity(Mechanism):
    """Sends the features as they are."""

    name = "identity"

    def __init__(self) -> None:  # written out so that its signature says: no options
        super().__init__()

    def send(self, z: Features, noise: Noise) -> Sent:
        return Sent(z)

    def follow(self, known: Guarantee) -> Guarantee:
        return known

    def settings(self) -> dict[str, object]:
        return {}
