"""Everything an attacker holds: a threat model bound to a client and to images. A victim's image has no place in it.

    grant(threat, oracle, auxiliary, selection, private) → Knowledge

`grant` takes parts by role and never an image set, so victims cannot be handed over by accident. A black box of n
queries spends a fifth of them on selection images, since choosing a checkpoint takes queries too.
"""

from dataclasses import dataclass

import torch
from torch import nn

from splitveil.attacks.family import Family
from splitveil.attacks.oracle import Oracle, SealedOracle
from splitveil.attacks.pairs import PairSource, QueriedPairs, RecordedPairs
from splitveil.attacks.threat import Box, Threat
from splitveil.check import UsageError
from splitveil.data import Part
from splitveil.randomness import SeededSource, derive, stream
from splitveil.split import Client

SELECTION_SHARE = 5  # one query of five chooses the checkpoint


@dataclass(frozen=True)
class Knowledge:
    """What one attacker holds. There is no field for a victim's image."""

    threat: Threat
    auxiliary: Part  # the attacker's own images; an insider's contain the private training images
    n_classes: int | None
    pairs: PairSource | None  # of `auxiliary`
    selection: PairSource | None  # of images that choose a checkpoint: neither fitted nor attacked
    client: Client | None  # None: nothing of the inside is known
    family: Family | None = None  # the architecture, without the client's weights
    head: nn.Module | None = None  # the server's half


def grant(
    threat: Threat,
    *,
    oracle: Oracle,
    auxiliary: Part,
    selection: Part,
    private: Part | None = None,
    n_classes: int | None = None,
    head: nn.Module | None = None,
    seed: int = 0,
) -> Knowledge:
    """What an attacker under `threat` holds of this client and these images."""
    if threat.insider and private is None:
        raise UsageError(f"{threat.name} needs the private training images; give `private`, or attack as an outsider")
    if threat.box is Box.WHITE and oracle.client is None:
        raise UsageError(f"{threat.name} needs the client itself, got a function; attack it as a black box")
    if threat.head_known and head is None:
        raise UsageError(f"{threat.name} needs the server's half; give `head`, or attack without it")
    half = head if threat.head_known else None
    own = auxiliary.joined(private) if threat.insider and private is not None else auxiliary
    if threat.box is Box.QUERY_FREE:
        family = None if oracle.client is None else Family(oracle.client)
        return Knowledge(threat, own, n_classes, None, None, None, family, half)
    pairs, choosing = _ask(threat, SealedOracle(oracle), own, selection, seed)  # pairs never lead to the client
    client = oracle.client if threat.box is Box.WHITE else None
    return Knowledge(threat, own, n_classes, pairs, choosing, client, head=half)


def _ask(threat: Threat, oracle: Oracle, own: Part, selection: Part, seed: int) -> tuple[PairSource, PairSource]:
    """Pairs to learn from and pairs to choose with, live or recorded."""
    releases = threat.releases
    if threat.queries is None:
        return QueriedPairs(own, oracle, releases=releases), QueriedPairs(selection, oracle, releases=releases)
    n = threat.queries // SELECTION_SHARE
    learned = record(oracle, own, n=threat.queries - n, releases=releases, seed=seed)
    return learned, record(oracle, selection, n=n, releases=releases, seed=derive(seed, "selection"))


def record(oracle: Oracle, part: Part, *, n: int, releases: int, seed: int) -> RecordedPairs:
    """The answers to `n` queries with images of `part`, chosen by `seed`."""
    if n > len(part):
        raise UsageError(f"{n} paired queries need as many images, got {len(part)}; lower queries")
    index = torch.randperm(len(part), generator=stream(seed, "queries"))[:n].to(part.device)
    asked = QueriedPairs(part, oracle, releases=releases)
    return RecordedPairs(asked.draw(index, source=SeededSource(seed, "recorded")))
