"""Train a split model: the whole loop, readable in one sitting.

Every random draw is keyed by (seed, purpose, step, position in the global batch), and a checkpoint holds everything
else, so a run that was stopped anywhere and resumed ends in the weights of one that never was.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from splitveil.check import RunError
from splitveil.data import ImageSet, batches
from splitveil.regularizers.base import Progress
from splitveil.split import Split
from splitveil.training import checkpoint as files
from splitveil.training.accuracy import accuracy
from splitveil.training.course import Course, pack, refuse_strangers, unpack
from splitveil.training.device import Place, open_place
from splitveil.training.log import Log
from splitveil.training.recipe import Recipe
from splitveil.training.schedule import learning_rate
from splitveil.training.settings import outcome_words, refuse_other_settings
from splitveil.training.setup import set_up, steps_per_epoch
from splitveil.training.step import Outcome, Term
from splitveil.training.watch import Report, Silent, StopWhen, Watcher

LOOK_EVERY = 50  # steps between two readings of the loss: each reading waits for the device
REASONS = (None, "time budget", "interrupted")  # why a run stops, the stronger later


@dataclass(frozen=True)
class Trained:
    """A finished (or stopped) run: the split with its best weights, and how it got there."""

    split: Split
    history: tuple[dict[str, Any], ...]  # one record an epoch
    best_epoch: int
    selection_accuracy: float
    seconds: float
    stopped: str | None  # None: ran to the end; otherwise why not
    broken: dict[str, int]  # steps without a finite penalty, by term


def train(
    split: Split,
    data: ImageSet,
    recipe: Recipe,
    *,
    regularizers: Sequence[Term] = (),
    out: Path | None = None,
    resume: bool = False,
    device: str = "auto",
    watcher: Watcher | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Trained:
    """Train client and server together on the train role; keep the weights that do best on the selection role.

    The networks in `split` are trained in place. With `out`, every epoch is logged there and a checkpoint is written,
    from which `resume=True` goes on, under the same settings only; `settings` are further ones that the outcome depends
    on, such as where the first weights came from. Ctrl-C finishes the step, saves, and returns with
    `stopped="interrupted"`. Under torchrun every process trains on its rows of each batch; only the first one writes
    and calls the watcher.
    """
    place = open_place(device, recipe.precision)
    run = _Run(place, split, data, recipe, regularizers, out, watcher or Silent(), settings)
    if resume:
        run.resume()
    with StopWhen(recipe.time_budget) as stop:
        stopped = run.go(stop)
    return run.finish(stopped)


class _Run:
    """The loop with all it holds."""

    def __init__(
        self,
        place: Place,
        split: Split,
        data: ImageSet,
        recipe: Recipe,
        terms: Sequence[Term],
        out: Path | None,
        watcher: Watcher,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.place, self.split, self.recipe, self.terms = place, split, recipe, terms
        self.data, self.out = data, out
        self.settings = outcome_words(split, recipe, terms, settings)  # before the networks are wrapped
        self.is_kept = bool(place.highest(int(out is not None)))  # the first process alone may have a directory
        self.watcher = watcher if place.is_first else Silent()
        self.train_part, self.selection = data.train.to(place.device), data.selection.to(place.device)
        self.steps_per_epoch = steps_per_epoch(self.train_part, recipe, n_ranks=place.n_ranks)
        self.course = Course(n_ranks=place.n_ranks)
        if out is not None and place.is_first:
            files.make_directory(out)
        self.log = Log(out if place.is_first else None)
        self.stepper = set_up(place, split, recipe, terms, data.n_classes)
        self.stop: StopWhen | None = None

    # -- the loop ---------------------------------------------------------------------------------------------------

    def go(self, stop: StopWhen) -> str | None:
        """Epoch after epoch, until the end or a reason to stop."""
        self.stop = stop
        while self.course.epoch < self.recipe.epochs:
            self._train_mode()
            reason = self._steps_of_epoch(stop)
            if reason is not None:
                self.save()  # here, so that whoever goes on does the rest of the epoch
            if reason != "interrupted":
                self._end_epoch(is_whole=reason is None)
            if reason is not None:
                return reason
        return None

    def _steps_of_epoch(self, stop: StopWhen) -> str | None:
        course = self.course
        left = batches(
            self.train_part,
            size=self.recipe.batch_size,
            seed=self.recipe.seed,
            epoch=course.epoch,
            start=course.batch,
            rank=self.place.rank,
            world=self.place.n_ranks,
        )
        for batch in left:
            self._take(self.stepper(batch, self.progress()))
            course.batch += 1
            if course.batch % LOOK_EVERY == 0:
                self._look()
            if (reason := self._reason(stop)) is not None:
                return reason
        return None

    def _reason(self, stop: StopWhen) -> str | None:
        """Why to stop. Several processes ask each other, and so seldom: they must stop at the same step."""
        batch = self.course.batch
        if self.place.n_ranks > 1 and batch % LOOK_EVERY and batch < self.steps_per_epoch:
            return None
        return REASONS[self.place.highest(REASONS.index(stop.reason()))]

    def _take(self, outcome: Outcome) -> None:
        loss = outcome.loss if self.place.n_ranks == 1 else outcome.loss / self.place.n_ranks
        self.course.task.add({"loss": loss, "n_correct": outcome.n_correct})
        self.course.gauges.add(outcome.gauges)

    def _end_epoch(self, *, is_whole: bool) -> None:
        course = self.course
        measured = accuracy(self.split, self.selection, seed=self.recipe.seed)
        progress = replace(self.progress(), selection_accuracy=measured)
        for term in self.terms:
            term.regularizer.end_epoch(progress)
        report = self._report(measured)
        if self._is_better(measured):
            course.best_accuracy, course.best_epoch = measured, course.epoch
            course.best = {k: v.detach().clone() for k, v in self.stepper.joint.state_dict().items()}
        record = self._record(report)
        course.history.append(record)
        course.next_epoch()
        self.log.epoch(record)
        if is_whole:
            self.save()
        self.watcher.epoch(report, record)

    def _is_better(self, measured: float) -> bool:
        """Whether this epoch's weights replace the chosen ones.

        An epoch before every penalty has its full weight is less protected than the run claims, so it is kept only
        until one comes that is not. Where a penalty is pushed against an accuracy floor, the latest epoch that keeps
        the floor is the most private one.
        """
        course = self.course
        full = all(term.weight.is_full(course.epoch) for term in self.terms)
        if not full:
            return not course.best_is_full and measured >= course.best_accuracy
        is_first = not course.best_is_full
        course.best_is_full = True
        floors = [term.accuracy_floor for term in self.terms if term.accuracy_floor is not None]
        keeps_floor = bool(floors) and measured >= max(floors)
        return is_first or keeps_floor or measured >= course.best_accuracy

    # -- what is seen of it -----------------------------------------------------------------------------------------

    def progress(self) -> Progress:
        """Where the run stands."""
        course = self.course
        step = course.epoch * self.steps_per_epoch + course.batch
        last = course.history[-1]["selection_accuracy"] if course.history else None
        lr = learning_rate(self.recipe, step=step, steps_per_epoch=self.steps_per_epoch)
        return Progress(self.recipe.seed, course.epoch, step, self.recipe.epochs, lr, self.recipe.lr, last)

    def _look(self) -> None:
        report = self._report(None)
        self.course.gauges.fold()
        self._guard()
        self.watcher.step(report)

    def _guard(self) -> dict[str, int]:
        """Steps without a finite penalty, by term; a run with too many of them is stopped."""
        counted = {term.name: term.regularizer.broken_steps() for term in self.terms}
        broken = {name: int(count) for name, count in counted.items() if count is not None}
        for term in self.terms:
            if broken.get(term.name, 0) > term.max_broken:
                raise RunError(
                    f"{term.name} had no finite penalty in {broken[term.name]} steps (limit {term.max_broken}); "
                    "lower its weight or training.lr, or set its clip_norm"
                )
        return broken

    def _report(self, selection_accuracy: float | None) -> Report:
        course, progress = self.course, self.progress()
        seen = course.task.everywhere(self.place.total)
        loss, n_correct = (seen.sum(name) / max(course.batch, 1) for name in ("loss", "n_correct"))
        if not math.isfinite(loss):
            raise RunError(
                f"the loss is not finite in epoch {course.epoch + 1} (step {progress.step}); lower training.lr, "
                "set training.clip_norm, or lower the weights of the regularizers"
            )
        return Report(
            epoch=course.epoch,
            n_epochs=self.recipe.epochs,
            step=progress.step,
            n_steps=self.recipe.epochs * self.steps_per_epoch,
            loss=loss,
            accuracy=n_correct / self.recipe.batch_size,
            selection_accuracy=selection_accuracy,
            seconds=self._seconds(),
        )

    def _record(self, report: Report) -> dict[str, Any]:
        weights = {f"{t.name}/weight": t.weight(self.progress()) for t in self.terms}
        return {
            "epoch": report.epoch,
            "step": report.step,
            "lr": self.progress().lr,
            "loss": report.loss,
            "accuracy": report.accuracy,
            "selection_accuracy": report.selection_accuracy,
            "seconds": round(report.seconds, 3),
            **weights,
            **self.course.gauges.everywhere(self.place.total).means(),
        }

    def _seconds(self) -> float:
        return self.course.seconds + (self.stop.seconds() if self.stop else 0.0)

    # -- keeping and finding again ----------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint. Every process must call it; the first one writes."""
        if self.is_kept:
            seconds, data = self._seconds(), self.data.sha256
            whole = pack(self.course, self.stepper, seconds=seconds, data=data, settings=self.settings)
            if self.place.is_first and self.out is not None:
                files.save(self.out, whole)

    def resume(self) -> None:
        """Go on from the newest complete checkpoint; from the start if there is none."""
        if self.out is None:
            return
        found = files.load(self.out)
        if (kept := found.checkpoint) is not None:
            refuse_other_settings(self.settings, kept.state, epochs=self.recipe.epochs, run=self.out)
            unpack(kept, self.course, self.stepper, data=self.data.sha256)
        if self.place.is_first:
            files.sweep_up(self.out)
        refuse_strangers(self.course, self.place)
        if found.damaged:
            self.watcher.note(f"{found.damaged[0]} is damaged: going on from the one before, epoch {self.course.epoch}")
        if kept is not None and "settings" not in kept.state:
            self.watcher.note("the checkpoint does not say its settings (an older version's): going on under these")
        self.log.cut_back(self.course.epoch)

    def finish(self, stopped: str | None) -> Trained:
        """Put the best weights in place and close the books."""
        course = self.course
        if course.best:
            self.stepper.joint.load_state_dict(course.best)
        self.log.close()
        self.split.client.eval(), self.split.server.eval()
        return Trained(
            split=self.split,
            history=tuple(course.history),
            best_epoch=course.best_epoch,
            selection_accuracy=course.best_accuracy,
            seconds=self._seconds(),
            stopped=stopped,
            broken=self._guard(),
        )

    def _train_mode(self) -> None:
        self.split.client.train(self.recipe.freeze != "encoder")  # a frozen half also keeps its batch statistics
        self.split.server.train(self.recipe.freeze != "head")
