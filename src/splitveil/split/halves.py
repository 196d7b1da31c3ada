"""The two halves of a cut network.

    client:  x ──encoder──▶ z ──mechanism──▶ z_sent            server:  z_sent ──head──▶ logits

The client is trained, attacked and deployed as this one object: there is no way to run it without its mechanism except
`encode`, which regularizers and bounds use and attacks never see.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from splitveil.mechanisms import Mechanism
from splitveil.randomness import NoiseSource
from splitveil.split.probe import device_of
from splitveil.types import Features, Images, Logits, Sent


@final
class Client(nn.Module):
    """Encoder, then mechanism: what runs on the user's device.

    Guarantees: `client(x, source=s)` is `mechanism(encode(x), source=s)`; features are at least float32, also under
    autocast, so that noise and norms never round to 8 bits.
    """

    def __init__(self, encoder: nn.Module, mechanism: Mechanism) -> None:
        super().__init__()
        self.encoder = encoder
        self.mechanism = mechanism

    def encode(self, x: Images) -> Features:
        """Clean features z. They must not leave the client."""
        z: Tensor = self.encoder(x)
        return z.float() if z.dtype in (torch.bfloat16, torch.float16) else z

    def forward(self, x: Images, *, source: NoiseSource) -> Sent:
        """What is sent for these images; `source` gives the mechanism's noise."""
        return self.mechanism(self.encode(x), source=source)  # type: ignore[no-any-return]


@final
class Server(nn.Module):
    """The head: what runs on the other machine. It sees z_sent and nothing else."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, z_sent: Sent) -> Logits:
        """Class scores."""
        return self.head(z_sent)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Split:
    """A network cut in two. The halves share no weights."""

    client: Client
    server: Server

    def __call__(self, x: Images, *, source: NoiseSource) -> Logits:
        """The whole path: encode, send, classify."""
        return self.server(self.client(x, source=source))  # type: ignore[no-any-return]

    @property
    def encoder_parameters(self) -> list[nn.Parameter]:
        """What training moves on the client."""
        return list(self.client.parameters())

    @property
    def head_parameters(self) -> list[nn.Parameter]:
        """What training moves on the server."""
        return list(self.server.parameters())

    @property
    def device(self) -> torch.device:
        """Where the halves are; the CPU if they have nothing that could be elsewhere."""
        return device_of(self.client) or device_of(self.server) or torch.device("cpu")

    def to(self, device: torch.device | str) -> "Split":
        """Move both halves, in place."""
        self.client.to(device)
        self.server.to(device)
        return self

    def train(self, mode: bool = True) -> "Split":
        """Put both halves in training (or evaluation) mode."""
        self.client.train(mode)
        self.server.train(mode)
        return self

    def eval(self) -> "Split":
        """Put both halves in evaluation mode."""
        return self.train(False)
