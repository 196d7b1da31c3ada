"""Threat models as records: what an attacker is granted, before it meets a client and images.

    white-box    the client itself (encoder and mechanism) and auxiliary images; as many queries as it likes
    black-box    n paired queries (x, z_sent), or as many as it likes, and nothing of the inside
    query-free   auxiliary images and the architecture's family, without a weight of the client
    modifiers    insider: the private training images too; T releases of one input; the true label; the server's head
                 (who holds the head holds what the server answers, too)

An outsider has auxiliary images only. An insider is what most papers call the training-time attack.
"""

from dataclasses import dataclass
from enum import StrEnum

from splitveil.check import UsageError, at_least


class Box(StrEnum):
    """How much of the client the attacker holds."""

    WHITE = "white-box"
    BLACK = "black-box"
    QUERY_FREE = "query-free"


@dataclass(frozen=True)
class Threat:
    """One threat model.

    >>> Threat(Box.BLACK, queries=1024, releases=4).name
    'black-box-1024 outsider, 4 releases'
    """

    box: Box = Box.WHITE
    queries: int | None = None  # of a black box; None: as many as it likes
    insider: bool = False
    releases: int = 1
    label_known: bool = False
    head_known: bool = False  # the server's half of the network

    def __post_init__(self) -> None:
        at_least("releases", self.releases, 1)
        if self.queries is not None:
            at_least("queries", self.queries, 5, hint="a fifth of them chooses the checkpoint")
            if self.box is not Box.BLACK:
                raise UsageError(f"queries counts what a black box answers, got {self.queries} with {self.box}")
        if self.insider and self.box is Box.QUERY_FREE:
            raise UsageError("an insider trained with the client; query-free grants nothing of it")

    @property
    def name(self) -> str:
        """What it is called in results."""
        box = f"{self.box}-{self.queries}" if self.queries else str(self.box)
        more = [f"{self.releases} releases"] * (self.releases > 1) + ["label known"] * self.label_known
        more += ["head known"] * self.head_known
        return ", ".join([f"{box} {'insider' if self.insider else 'outsider'}", *more])

    @property
    def slug(self) -> str:
        """The name as part of a file name."""
        return self.name.replace(", ", "-").replace(" ", "-")
