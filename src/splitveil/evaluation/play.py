"""Trials and inquiries one after another: what is stored is not run again, and what is finished is stored.

An evaluation with a time budget ends between two trials, in a fit, or while victims are inverted: `TimeUp`. What was
finished is kept, the fit in flight up to its last step and the answers up to the last piece of the victims, and the
same call goes on from there.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import final

from splitveil.attacks import Box, Need
from splitveil.check import RunError, positive
from splitveil.evaluation.store import Store
from splitveil.evaluation.suite import Inquiry, Suite, Trial
from splitveil.evaluation.trial import Outcome, Scene, run_inquiry, run_trial
from splitveil.fitting import Check


class TimeUp(RunError):
    """The time budget is used up; the same call goes on."""

    @classmethod
    def after(cls, n_done: int, total: int) -> "TimeUp":
        """With so many of all attacks finished."""
        return cls(
            f"the time budget is used up after {n_done} of {total} attacks; "
            "what is finished is kept, the same command goes on with the rest"
        )


@dataclass(frozen=True)
class Update:
    """Where an evaluation stands: before a trial, at a check of its fit (`check`), or after it (`mse` or `right`)."""

    index: int  # of the trial and seed, from 0: how many are finished before it
    total: int
    trial: str
    seed: int
    check: Check | None = None
    mse: float | None = None
    right: float | None = None  # of an inference: share of victims guessed right
    was_stored: bool = False  # finished in an earlier evaluation

    @property
    def is_done(self) -> bool:
        """Whether this trial is finished."""
        return self.mse is not None or self.right is not None


Progress = Callable[[Update], None]
Claim = Callable[[Trial | Inquiry, int], bool]  # whether this trial and seed is ours to play
Outcomes = dict[Trial | Inquiry, tuple[Outcome, ...]]


@final
class Reporter:
    """Passes updates on, and ends the evaluation when its time is up."""

    def __init__(self, progress: Progress | None, time_budget: float | None) -> None:
        self._progress = progress
        self._budget = None if time_budget is None else positive("time budget", time_budget)
        self._began = time.monotonic()
        self._last: Update | None = None

    def __call__(self, update: Update) -> None:
        """Take an update; nothing new is begun after the time is up."""
        self._last = update
        if self._progress is not None:
            self._progress(update)
        if self._is_up() and not (update.is_done and update.index + 1 >= update.total) and not update.was_stored:
            raise TimeUp.after(update.index + update.is_done, update.total)

    def pause(self) -> None:
        """End a fit between two of its checks."""
        if self._last is not None and self._is_up():
            raise TimeUp.after(self._last.index + self._last.is_done, self._last.total)

    def _is_up(self) -> bool:
        return self._budget is not None and time.monotonic() - self._began >= self._budget


def play(suite: Suite, scene: Scene, store: Store, seeds: Sequence[int], tell: Progress) -> Outcomes:
    """Run what is not stored, in order."""
    order = _order(suite, seeds)
    outcomes: dict[Trial | Inquiry, list[Outcome]] = {each: [] for _, each in order}
    for i, (seed, each) in enumerate(order):
        outcome = store.get(each, seed)
        was_stored = outcome is not None
        if outcome is None and (twin := twin_of(each)) in outcomes and len(outcomes[twin]) > len(outcomes[each]):
            outcome = outcomes[twin][len(outcomes[each])]
            store.put(each, seed, outcome)
        if outcome is None:
            tell(Update(i, len(order), each.name, seed))
            outcome = _run(each, scene, store, seed, _watch(tell, i, len(order), each, seed))
            store.put(each, seed, outcome)
        outcomes[each].append(outcome)
        mse, right = outcome.mean("mse"), outcome.mean("right")
        tell(Update(i, len(order), each.name, seed, mse=mse, right=right, was_stored=was_stored))
    return {each: tuple(done) for each, done in outcomes.items()}


def play_claimed(suite: Suite, scene: Scene, store: Store, seeds: Sequence[int], tell: Progress, claim: Claim) -> None:
    """Run and store what is not stored and can be claimed; what is a copy of another trial costs nothing later."""
    for seed, each in _order(suite, seeds):
        if _is_copy(each, suite) or store.get(each, seed) is not None or not claim(each, seed):
            continue
        watch = partial(_tell_standing, suite, store, seeds, tell, each.name, seed)
        watch(None)
        outcome = _run(each, scene, store, seed, watch)
        store.put(each, seed, outcome)
        n_done, total = standing(suite, store, seeds)
        tell(Update(n_done - 1, total, each.name, seed, mse=outcome.mean("mse"), right=outcome.mean("right")))


def standing(suite: Suite, store: Store, seeds: Sequence[int]) -> tuple[int, int]:
    """How many are finished, whoever played them, and how many there are; a copy is finished with its original."""
    order = _order(suite, seeds)
    played = [(twin_of(each) if _is_copy(each, suite) else each, seed) for seed, each in order]
    return sum(store.has(each, seed) for each, seed in played), len(order)


def _tell_standing(
    suite: Suite, store: Store, seeds: Sequence[int], tell: Progress, name: str, seed: int, check: Check | None
) -> None:
    tell(Update(*standing(suite, store, seeds), name, seed, check=check))


def _order(suite: Suite, seeds: Sequence[int]) -> list[tuple[int, Trial | Inquiry]]:
    """All trials of one seed before the next seed, then what is asked beside."""
    order: list[tuple[int, Trial | Inquiry]] = [(seed, each) for seed in seeds for each in suite.trials]
    return order + [(seed, each) for seed in seeds for each in suite.inquiries]


def twin_of(each: Trial | Inquiry) -> Trial | Inquiry:
    """The white-box trial that a black box of any number of queries cannot differ from: neither uses the client."""
    threat = each.threat
    if isinstance(each, Trial) and threat.box is Box.BLACK and threat.queries is None:
        return replace(each, threat=replace(threat, box=Box.WHITE)) if Need.CLIENT not in each.attack.needs else each
    return each


def _is_copy(each: Trial | Inquiry, suite: Suite) -> bool:
    return (twin := twin_of(each)) is not each and twin in suite.trials


def _run(each: Trial | Inquiry, scene: Scene, store: Store, seed: int, watch: Callable[[Check], None]) -> Outcome:
    if isinstance(each, Inquiry):
        return run_inquiry(each, scene, seed=seed, watch=watch, state=store.state(each, seed))
    return run_trial(each, scene, seed=seed, watch=watch, state=store.state(each, seed))


def _watch(tell: Progress, index: int, total: int, each: Trial | Inquiry, seed: int) -> Callable[[Check], None]:
    return lambda check: tell(Update(index, total, each.name, seed, check=check))
