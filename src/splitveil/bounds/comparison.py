"""What fewer bits should mean for the error, as a comparison of two clients and never as a floor.

    pixels on a grid of step Δ:   MSE ≥ Δ² exp(2(H(x) − I)/d)/(2πe) − Δ²/12        H(x) of images is not known
    the same images twice:        floor / floor₀ = exp(2(I₀ − I)/d)                H(x) and Δ cancel, Δ²/12 left out

With I an upper bound of what each client sends, the factor says how much room was taken from attackers, not what they
reach: two clients may lie at different distances from their bounds.
"""

import math
from collections.abc import Sequence

from splitveil.bounds.base import Bound, Kind, Side
from splitveil.check import UsageError, positive

BITS = "bits"
HOLDS_IF = (
    "both clients lie as far below their information bounds",
    "both see the same images with the same σ",
    "attackers of both use all that is sent",
)


def compare(bits: float, bits_at_lambda_0: float, d: int) -> float:
    """exp(2(I₀ − I)/d): how much higher the error's floor is than that of the same σ at λ = 0; d pixel values.

    >>> compare(300.0, 300.0, d=784)
    1.0
    """
    positive("d", d)
    return math.exp(2 * (bits_at_lambda_0 - bits) * math.log(2) / d)


def comparison(mine: Bound, at_lambda_0: Bound, d: int) -> Bound:
    """The same for two information bounds, as a bound that carries its doubts."""
    for bound in (mine, at_lambda_0):
        if bound.unit != BITS:
            raise UsageError(f"a comparison needs two information bounds, got {bound.name!r}")
    if mine.releases != at_lambda_0.releases:
        raise UsageError(f"bounds of {mine.releases} and of {at_lambda_0.releases} releases cannot be compared")
    spans = [bound.interval or (bound.value, bound.value) for bound in (mine, at_lambda_0)]
    ends = (compare(spans[0][1], spans[1][0], d), compare(spans[0][0], spans[1][1], d))
    return Bound(
        name="entropy to MSE",
        quantity="MSE / MSE at λ = 0",
        value=compare(mine.value, at_lambda_0.value, d),
        side=Side.AT_LEAST,
        kind=Kind.HEURISTIC,
        holds_if=HOLDS_IF,
        interval=ends,
        releases=mine.releases,
    )


def comparisons(mine: Sequence[Bound], at_lambda_0: Sequence[Bound], d: int) -> tuple[Bound, ...]:
    """The same for all bounds of two clients: one for each number of releases at which both have bits, the fewest."""
    here, there = _fewest(mine), _fewest(at_lambda_0)
    return tuple(comparison(here[count], there[count], d) for count in here if count in there)


def _fewest(bounds: Sequence[Bound]) -> dict[int, Bound]:
    bits = [bound for bound in bounds if bound.unit == BITS]
    counts = dict.fromkeys(bound.releases for bound in bits)
    return {n: min((b for b in bits if b.releases == n), key=lambda bound: bound.value) for n in counts}
