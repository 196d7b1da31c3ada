"""Train a split model: the whole loop, readable in one sitting.

Every random draw is keyed by (seed, purpose, step, position in the global batch), and a checkpoint holds everything
else, so a run that was stopped anywhere and resumed ends in the weights of one that never was.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from splitveil.check import RunError, UsageError
from splitveil.data import ImageSet, Part, batches
from splitveil.regularizers.base import Progress
from splitveil.split import Split
from splitveil.training import checkpoint as files
from splitveil.training.accuracy import accuracy
from splitveil.training.course import Course, pack, unpack
from splitveil.training.device import Fabric, open_fabric
from splitveil.training.gauges import Gauges
from splitveil.training.log import Log
from splitveil.training.recipe import Recipe
from splitveil.training.schedule import learning_rate
from splitveil.training.setup import set_up
from splitveil.training.step import Joint, Outcome, Term
from splitveil.training.watch import Report, Silent, StopWhen, Watcher

LOOK_EVERY = 50  # steps between two readings of the loss: each reading waits for the device


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
) -> Trained:
    """Train client and server together on the train role; keep the weights that do best on the selection role.

    The networks in `split` are trained in place. With `out`, every epoch is logged there and a checkpoint is written,
    from which `resume=True` goes on. Ctrl-C finishes the step, saves, and returns with `stopped="interrupted"`.
    """
    fabric = open_fabric(device, recipe.precision)
    run = _Run(fabric, split, data, recipe, regularizers, out, watcher or Silent())
    if resume:
        run.resume()
    with StopWhen(recipe.time_budget) as stop:
        stopped = run.go(stop)
    return run.finish(stopped)


class _Run:
    """The loop with all it holds."""

    def __init__(
        self,
        fabric: Fabric,
        split: Split,
        data: ImageSet,
        recipe: Recipe,
        terms: Sequence[Term],
        out: Path | None,
        watcher: Watcher,
    ) -> None:
        self.fabric, self.split, self.recipe, self.terms = fabric, split, recipe, terms
        self.out, self.watcher = out, watcher
        self.train_part, self.selection = data.train.to(fabric.device), data.selection.to(fabric.device)
        self.steps_per_epoch = _steps(self.train_part, recipe)
        self.course = Course()
        self.course.totals = self.course.totals.to(fabric.device)
        self.log = Log(out if fabric.is_global_zero else None)
        self.stepper = set_up(fabric, split, recipe, terms, data.n_classes)
        self.stop: StopWhen | None = None

    # -- the loop ---------------------------------------------------------------------------------------------------

    def go(self, stop: StopWhen) -> str | None:
        """Epoch after epoch, until the end or a reason to stop."""
        self.stop = stop
        while self.course.epoch < self.recipe.epochs:
            self._train_mode()
            reason = self._steps_of_epoch(stop)
            if reason == "interrupted":
                self.save()
                return reason
            self._end_epoch()
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
            rank=self.fabric.global_rank,
            world=self.fabric.world_size,
        )
        for batch in left:
            self._take(self.stepper(batch, self.progress()), len(batch.y))
            course.batch += 1
            if course.batch % LOOK_EVERY == 0:
                self._look()
            if (reason := stop.reason()) is not None:
                return reason
        return None

    def _take(self, outcome: Outcome, n: int) -> None:
        self.course.totals += torch.stack(
            [outcome.loss.double() * n, outcome.n_correct.double(), torch.full_like(outcome.loss, n).double()]
        )
        self.course.gauges.add(outcome.gauges)

    def _end_epoch(self) -> None:
        course = self.course
        measured = accuracy(self.split, self.selection, seed=self.recipe.seed)
        progress = replace(self.progress(), selection_accuracy=measured)
        for term in self.terms:
            term.regularizer.end_epoch(progress)
        report = self._report(measured)
        if self._is_better(measured):
            course.best_accuracy, course.best_epoch = measured, course.epoch
            course.best = {k: v.detach().clone() for k, v in self._joint.state_dict().items()}
        record = self._record(report)
        course.history.append(record)
        course.epoch, course.batch = course.epoch + 1, 0
        course.totals, course.gauges = torch.zeros_like(course.totals), Gauges()
        self.log.epoch(record)
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
        if self.fabric.is_global_zero:
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
        totals = (
            self.fabric.all_reduce(course.totals.clone(), reduce_op="sum")
            if self.fabric.world_size > 1
            else course.totals
        )
        loss, correct, n = totals.tolist()
        if loss != loss or abs(loss) == float("inf"):
            raise RunError(
                f"the loss is not finite in epoch {course.epoch + 1} (step {progress.step}); lower training.lr, "
                "set training.clip_norm, or lower the weights of the regularizers"
            )
        return Report(
            epoch=course.epoch,
            n_epochs=self.recipe.epochs,
            step=progress.step,
            n_steps=self.recipe.epochs * self.steps_per_epoch,
            loss=loss / max(n, 1),
            accuracy=correct / max(n, 1),
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
            **self.course.gauges.means(),
        }

    def _seconds(self) -> float:
        return self.course.seconds + (self.stop.seconds() if self.stop else 0.0)

    # -- keeping and finding again ----------------------------------------------------------------------------------

    @property
    def _joint(self) -> Joint:
        return self.stepper.joint

    def save(self) -> None:
        """Write a checkpoint (rank 0 only)."""
        if self.out is not None and self.fabric.is_global_zero:
            files.save(self.out, pack(self.course, self.stepper, seconds=self._seconds()))

    def resume(self) -> None:
        """Go on from the newest complete checkpoint; from the start if there is none."""
        found = files.load(self.out) if self.out is not None else None
        if found is not None:
            unpack(found, self.course, self.stepper)
        self.log.cut_back(self.course.epoch)

    def finish(self, stopped: str | None) -> Trained:
        """Put the best weights in place and close the books."""
        course = self.course
        if course.best:
            self._joint.load_state_dict(course.best)
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


def _steps(part: Part, recipe: Recipe) -> int:
    steps = len(part) // recipe.batch_size
    if steps == 0:
        raise UsageError(f"batch_size {recipe.batch_size} is larger than the train role ({len(part)} images); lower it")
    return steps
