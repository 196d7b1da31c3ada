"""One evaluation played by several processes: each trial is claimed by one of them, and kept for all.

    <out>/claims/<attack>--<threat>-seed0      made by the process that plays it, found by the others

A GPU that one small fit leaves idle is filled by several. When all have done their part, `evaluate` on the same folder
finds every trial finished; what a process that died has claimed, it plays itself.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import final

from torch import nn

from splitveil.check import RunError, UsageError
from splitveil.data import ImageSet
from splitveil.evaluation.play import Progress, Reporter, Update, play_claimed, standing
from splitveil.evaluation.rehearsal import different
from splitveil.evaluation.roles import Roles
from splitveil.evaluation.stage import Stage, set_stage
from splitveil.evaluation.suite import Inquiry, Suite, Trial
from splitveil.fitting import Check
from splitveil.pausing import pausing
from splitveil.writing import reason

JUDGES = "who looks at the answers"  # as their training is told of

Standing = Callable[[], tuple[int, int]]  # trials finished, and all


@final
class Claims:
    """Who plays what: a file for each trial and seed, that only one process can make."""

    def __init__(self, out: Path) -> None:
        self._folder = out / "claims"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make {self._folder}: {reason(error)}") from None

    def __call__(self, each: Trial | Inquiry, seed: int) -> bool:
        """Whether this process is the first to ask."""
        try:
            os.close(os.open(self._folder / f"{each.slug}-seed{seed}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def clear(self) -> None:
        """Forget all claims: before anyone begins, and when everyone is done."""
        for claim in self._folder.glob("*-seed*"):
            claim.unlink(missing_ok=True)

    def close(self) -> None:
        """Forget all claims and the folder."""
        self.clear()
        with suppress(OSError):  # something else is in it, or it is gone
            self._folder.rmdir()


def take_part(
    client: object,
    suite: str | Suite,
    data: ImageSet | Roles,
    *,
    out: Path | str,
    seeds: Sequence[int] = (0,),
    progress: Progress | None = None,
    head: nn.Module | None = None,
    time_budget: float | None = None,
    client_name: str | None = None,
) -> Standing:
    """Play trials of an evaluation in `out` that are neither finished nor claimed, until none is left.

    The words are those of `evaluate`, and give the same trials; a function whose answers are random needs a
    `client_name`. What comes back tells how many of all are finished.
    """
    seeds, out = different(seeds), Path(out)
    stage, tell = _stage(client, suite, data, out, head, client_name), Reporter(progress, time_budget)
    with pausing(tell.pause):
        play_claimed(stage.suite, stage.scene, stage.store, seeds, tell, Claims(out))
    return lambda: standing(stage.suite, stage.store, seeds)


def prepare(
    client: object,
    suite: str | Suite,
    data: ImageSet | Roles,
    *,
    out: Path | str,
    seeds: Sequence[int] = (0,),
    progress: Progress | None = None,
    head: nn.Module | None = None,
    time_budget: float | None = None,
    client_name: str | None = None,
) -> None:
    """Train what all trials of an evaluation in `out` share, so that no two processes do: who looks at the answers.

    It ends as `evaluate` does when its time is up, and goes on where it stopped; where all is finished it is done.
    """
    seeds, tell = different(seeds), Reporter(progress, time_budget)
    stage = _stage(client, suite, data, Path(out), head, client_name)
    begun = Update(*standing(stage.suite, stage.store, seeds), JUDGES, seeds[0])
    if stage.scene.judges is None or begun.index == begun.total:
        return
    tell(begun)

    def watch(check: Check) -> None:
        tell(replace(begun, trial=check.what, check=replace(check, what="")))  # it is needed by all, not by one

    with pausing(tell.pause):
        for insider in sorted({trial.threat.insider for trial in stage.suite.trials}):
            stage.scene.judges.prepare(insider=insider, watch=watch)


def _stage(
    client: object, suite: str | Suite, data: ImageSet | Roles, out: Path, head: nn.Module | None, name: str | None
) -> Stage:
    """The stage that every process sets alike."""
    stage = set_stage(client, suite, data, out=out, keep_samples=None, head=head, client_name=name)
    if name is None and stage.is_random and stage.scene.oracle.client is None:
        raise UsageError(
            "processes share no trials of a function whose answers are random: it could be another; give a client_name"
        )
    return stage
