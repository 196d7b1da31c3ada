"""A small world to evaluate clients in, and results without what differs from run to run."""

from dataclasses import replace

from splitveil.attacks import DecoderAttack
from splitveil.evaluation import Result, Roles
from splitveil.fitting import Plan
from worlds.linear_gaussian import world

WORLD = world(side=12, features=24, noise_std=0.2)
PARTS = {role: WORLD.part(n, 0, role) for role, n in {"auxiliary": 300, "selection": 60, "victims": 90}.items()}
ROLES = Roles("world", "00", **PARTS, private=WORLD.part(300, 0, "train"), n_classes=2)
CONV = DecoderAttack("conv", batch=32, plan=Plan(steps=6, check_every=3))


def timeless(result: Result) -> Result:
    """The result without what a clock or a memory gauge said."""
    attacks = tuple(replace(each, seconds=0.0, peak_memory_mb=None) for each in result.attacks)
    inferences = tuple(replace(each, seconds=0.0, peak_memory_mb=None) for each in result.inferences)
    return replace(result, attacks=attacks, inferences=inferences)
