"""The network cut in two: x → z on the client, z_sent → logits on the server."""

from splitveil.split.bottleneck import Bottleneck
from splitveil.split.cutting import cut, names_to_cut
from splitveil.split.halves import Client, Server, Split
from splitveil.split.normalize import Normalize
from splitveil.split.probe import device_of, evaluating
from splitveil.split.returning import Returning
from splitveil.split.stirring import encode_seeded, is_noisy, seeded

__all__ = [
    "Bottleneck",
    "Client",
    "Normalize",
    "Returning",
    "Server",
    "Split",
    "cut",
    "device_of",
    "encode_seeded",
    "evaluating",
    "is_noisy",
    "names_to_cut",
    "seeded",
]
