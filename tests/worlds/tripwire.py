"""Victims' pixels that cannot be read while an attack is at work.

wired(part): the same images; touching their values between `Attack.fit`'s (or an inverter's) begin and end raises
"""

from contextlib import contextmanager
from typing import Any

import pytest
from torch import Tensor

from splitveil.attacks import Attack, Health, Inverter, Seen
from splitveil.data import Part
from splitveil.evaluation.victims import Victims

FACTS = {"__get__", "__len__", "dim", "size"}  # dtype, shape and device are no secret


class Trespass(AssertionError):
    """An attack read a victim's image."""


class Tripwire(Tensor):
    locked = False

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if Tripwire.locked and func.__name__ not in FACTS:
            raise Trespass(f"{func.__name__} on a victim's image while an attack runs")
        return super().__torch_function__(func, types, args, kwargs or {})


@contextmanager
def locked():
    Tripwire.locked = True
    try:
        yield
    finally:
        Tripwire.locked = False


class Watched(Inverter):
    def __init__(self, inverter: Inverter) -> None:
        self.inverter = inverter

    @property
    def health(self) -> Health:
        return self.inverter.health

    def __call__(self, seen: Seen) -> Tensor:
        with locked():
            return self.inverter(seen)


def wired(part: Part) -> Part:
    return Part(part.pixels.as_subclass(Tripwire), part.labels)


@pytest.fixture
def tripwire(monkeypatch: pytest.MonkeyPatch):
    """Attacks run with the wire drawn; what they are handed of the victims is plain z_sent."""
    fit, observe = Attack.fit, Victims.observe

    def watched_fit(self: Attack, *args: Any, **kwargs: Any) -> Inverter:
        with locked():
            return Watched(fit(self, *args, **kwargs))

    def plain_observe(self: Victims, *args: Any, **kwargs: Any) -> Seen:
        seen = observe(self, *args, **kwargs)
        assert isinstance(seen.z_sent, Tripwire), "the victims are not wired"
        return Seen(seen.z_sent.as_subclass(Tensor), seen.y)

    monkeypatch.setattr(Attack, "fit", watched_fit)
    monkeypatch.setattr(Victims, "observe", plain_observe)
    return wired
