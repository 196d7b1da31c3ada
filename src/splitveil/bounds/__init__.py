"""What no adversary can beat, each bound with how it is known and what must be true for it to hold."""

from splitveil.bounds.base import MSE, Bound, Kind, Side
from splitveil.bounds.channel import Channel, channel_of
from splitveil.bounds.collect import bounds_of, missing
from splitveil.bounds.comparison import compare, comparison, comparisons
from splitveil.bounds.information import Reading, information, readings
from splitveil.bounds.jacobian import Probing
from splitveil.bounds.local_dp import advantage, local_dp
from splitveil.bounds.parts import Encoded, Parts, Points, encoded, parts_of
from splitveil.bounds.two_point import two_point
from splitveil.bounds.van_trees import (
    Looks,
    choose_width,
    known_prior,
    look,
    raw,
    scalar_bound,
    smoothed,
    trace_bound,
)

__all__ = [
    "MSE",
    "Bound",
    "Channel",
    "Encoded",
    "Kind",
    "Looks",
    "Parts",
    "Points",
    "Probing",
    "Reading",
    "Side",
    "advantage",
    "bounds_of",
    "channel_of",
    "choose_width",
    "compare",
    "comparison",
    "comparisons",
    "encoded",
    "information",
    "known_prior",
    "local_dp",
    "look",
    "missing",
    "parts_of",
    "raw",
    "readings",
    "scalar_bound",
    "smoothed",
    "trace_bound",
    "two_point",
]
