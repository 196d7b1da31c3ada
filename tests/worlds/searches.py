"""What searches are tried on."""

from splitveil.attacks import (
    Knowledge,
    OptimizationAttack,
    Threat,
    grant,
    oracle_of,
)
from splitveil.split import Client
from worlds.linear_gaussian import LinearGaussian, world

WORLD = world()
WIDE = world(features=60)
MAP = OptimizationAttack(prior="gaussian", start="mean", steps=120, n_tuned=48)


def held(this: LinearGaussian, client: Client | None = None, releases: int = 1) -> Knowledge:
    oracle = oracle_of(client or this.client())
    parts = {"auxiliary": this.part(2000, 0, "auxiliary"), "selection": this.part(300, 0, "selection")}
    return grant(Threat(releases=releases), oracle=oracle, **parts)
