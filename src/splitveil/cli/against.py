"""A run of the same noise without a penalty, beside the run that is attacked.

Its result judges whether attacks work at all; its bits say what fewer of them should mean for the error (a heuristic).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from splitveil.attacks import oracle_of
from splitveil.bounds import Bound, comparisons
from splitveil.bounds.channel import obstacle
from splitveil.check import UsageError
from splitveil.cli.runs import Run, open_run
from splitveil.evaluation import Result
from splitveil.evaluation.fingerprints import client_fingerprint
from splitveil.evaluation.rehearsal import why_strange
from splitveil.evaluation.roles import roles_of


@dataclass(frozen=True)
class Undefended:
    """What the same suite did to another run, and that run."""

    run: Run
    result: Result


def undefended_run(run: Path | None, suite: str, *, of: Path) -> Undefended | None:
    """The run that was given by --undefended of another; it must have been attacked by this suite."""
    if run is None:
        return None
    if run.resolve() == of.resolve():
        raise UsageError(f"--undefended: {run} is the run itself; give another one, without its defense")
    place = run / "attacks" / suite / "result.json"
    if not place.exists():
        raise UsageError(f"--undefended: {place} is not there; run `splitveil attack {run} --suite {suite}` first")
    return Undefended(open_run(run), _result(place, again=f"splitveil attack {run} --suite {suite}"))


def refuse_stranger(other: Undefended | None, opened: Run) -> None:
    """Before anything is played, what `evaluate` would refuse."""
    if other is None:
        return
    roles = roles_of(opened.data)
    strange = why_strange(other.result, roles, client_fingerprint(oracle_of(opened.split.client), roles))
    if strange is not None:
        raise UsageError(f"--undefended: {other.run.directory} {strange}")


def _result(place: Path, *, again: str) -> Result:
    try:
        return Result.load(place)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--undefended: {place} cannot be read ({error}); run `{again}` again") from None


def compared(
    opened: Run, found: Sequence[Bound], other: Undefended | None, limits: Callable[[Run], Sequence[Bound]]
) -> tuple[Bound, ...]:
    """What fewer bits should mean for the error; empty where the two do not compare. `limits` finds a run's bounds."""
    if other is None or why_not_compared(opened, other) is not None:
        return ()
    other.run.split.to(opened.split.device)
    channels, height, width = opened.data.image_shape
    return comparisons(found, limits(other.run), d=channels * height * width)


def why_not_compared(opened: Run, other: Undefended | None) -> str | None:
    """One line if another run was given whose bits say nothing about this one's."""
    if other is None:
        return None
    there = other.run
    reason = None
    if opened.config.mechanism != there.config.mechanism:
        reason = "it has another mechanism; train it with the same noise"
    elif there.config.regularizers:
        reason = "it has a regularizer; train it without"
    elif opened.result["data"]["sha256"] != there.result["data"]["sha256"]:
        reason = "it was trained with other images"
    elif obstacle(opened.split.client.mechanism) is not None:
        reason = "without gaussian noise nothing bounds the bits"
    return None if reason is None else f"no comparison of bits with {there.directory}: {reason}"
