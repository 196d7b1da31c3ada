"""A run goes on under the settings it began with, and under no others."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from splitveil.check import UsageError
from splitveil.mechanisms import Chain, Clip, Gaussian, Identity, Mechanism
from splitveil.regularizers.entropy import kmeans, plain
from splitveil.split import Split, cut
from splitveil.training import Recipe, Term, Trained, Weight, train
from splitveil.training.checkpoint import load
from splitveil.training.settings import differences, outcome_words
from worlds.small import small_images, small_split
from worlds.stopping import StopAfter, forget_settings

RECIPE = Recipe(epochs=3, batch_size=16, lr=0.1, time_budget=600)
TERM = Term("plain", plain(), Weight(0.1))
END = "; give the old ones back, or start a new run with another --out"


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What differs between two runs that differ in these things."""

    def words(recipe: Recipe = RECIPE, terms: tuple[Term, ...] = (TERM,), **built: Any) -> dict[str, Any]:
        return outcome_words(built.get("split") or small_split(), recipe, terms, built.get("more"))

    return differences(words(**after), words(**before))


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ({"lr": 0.2}, "training.lr is 0.2 (was 0.1)"),
        ({"epochs": 4}, "training.epochs is 4 (was 3)"),
        ({"batch_size": 8}, "training.batch_size is 8 (was 16)"),
        ({"optimizer": "adamw"}, 'training.optimizer is "adamw" (was "sgd")'),
        ({"momentum": 0.5}, "training.momentum is 0.5 (was 0.9)"),
        ({"clip_norm": 1.0}, "training.clip_norm is 1.0 (was null)"),
        ({"freeze": "head"}, 'training.freeze is "head" (was "nothing")'),
        ({"precision": "float64"}, 'training.precision is "float64" (was "float32")'),
        ({"seed": 1}, "training.seed is 1 (was 0)"),
    ],
)
def test_a_recipe_that_ends_elsewhere_differs(edit: dict[str, Any], said: str) -> None:
    assert changed({}, {"recipe": replace(RECIPE, **edit)}) == [said]


@pytest.mark.parametrize("edit", [{"time_budget": None}, {"compile": True}, {"channels_last": True}])
def test_how_and_how_long_a_run_is_computed_makes_no_difference(edit: dict[str, Any]) -> None:
    assert changed({}, {"recipe": replace(RECIPE, **edit)}) == []


def test_an_option_that_does_nothing_beside_the_others_makes_no_difference() -> None:
    assert changed({}, {"recipe": replace(RECIPE, milestones=(0.1,))}) == []
    adamw = replace(RECIPE, optimizer="adamw")
    assert changed({"recipe": adamw}, {"recipe": replace(adamw, momentum=0.5)}) == []
    steps = replace(RECIPE, schedule="multistep")
    assert changed({"recipe": steps}, {"recipe": replace(steps, milestones=(0.1,))}) == [
        "training.milestones is [0.1] (was [0.5, 0.75])"
    ]


@pytest.mark.parametrize(
    ("term", "said"),
    [
        (replace(TERM, weight=Weight(0.2)), ["regularizers.0.weight is 0.2 (was 0.1)"]),
        (replace(TERM, weight=Weight(0.1, warmup_epochs=1)), ["regularizers.0.warmup_epochs is 1 (was 0)"]),
        (replace(TERM, clip_norm=1.0), ["regularizers.0.clip_norm is 1.0 (was null)"]),
        (replace(TERM, accuracy_floor=0.5), ["regularizers.0.keep_accuracy is 0.5 (was null)"]),
        (Term("kmeans", kmeans(), Weight(0.3)), ['regularizers.0.name is "kmeans" (was "plain")']),
        (replace(TERM, max_broken=7), []),
    ],
)
def test_penalties_that_charge_otherwise_differ(term: Term, said: list[str]) -> None:
    assert changed({}, {"terms": (term,)}) == said


def test_one_penalty_more_or_less_differs() -> None:
    assert changed({}, {"terms": ()}) == ['regularizers is [] (was ["plain"])']
    other = Term("kmeans", kmeans(), Weight(1.0))
    assert changed({}, {"terms": (TERM, other)}) == ['regularizers is ["plain", "kmeans"] (was ["plain"])']


def test_options_of_a_penalty_are_compared_and_those_of_another_version_are_not() -> None:
    before = replace(TERM, options={"n_groups": 4, "gone": 1})
    assert changed({"terms": (before,)}, {"terms": (replace(TERM, options={"n_groups": 5, "new": 2}),)}) == [
        "regularizers.0.n_groups is 5 (was 4)"
    ]


@pytest.mark.parametrize(
    ("mechanism", "said"),
    [
        (Gaussian(std=0.2), ["mechanism.0.std is 0.2 (was 0.1)"]),
        (Identity(), ['mechanism is [] (was ["gaussian"])']),
        (Chain([Clip(radius=1.0), Gaussian(std=0.1)]), ['mechanism is ["clip", "gaussian"] (was ["gaussian"])']),
        (Chain([Gaussian(std=0.1), Identity()]), []),
    ],
)
def test_another_mechanism_differs(mechanism: Mechanism, said: list[str]) -> None:
    assert changed({}, {"split": small_split(mechanism=mechanism)}) == said


def network(*middle: nn.Module) -> Split:
    return cut(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Sequential(*middle), nn.Linear(8, 3)), after="2")


def test_another_layer_differs_though_the_weights_would_fit() -> None:
    before = {"split": network(nn.ReLU(), nn.Dropout(0.1))}
    assert changed(before, {"split": network(nn.Tanh(), nn.Dropout(0.1))}) == [
        'layers.encoder.body.2.0.name is "Tanh" (was "ReLU")'
    ]
    assert changed(before, {"split": network(nn.ReLU(), nn.Dropout(0.2))}) == [
        "layers.encoder.body.2.1.p is 0.2 (was 0.1)"
    ]
    assert changed(before, {"split": network(nn.ReLU(), nn.Dropout(0.1))}) == []
    (gained,) = changed(before, {"split": network(nn.ReLU(), nn.Dropout(0.1), nn.Tanh())})
    assert gained.startswith("layers.order is ")


def test_layers_are_told_only_where_no_setting_explains_them() -> None:
    before = {"split": network(nn.ReLU()), "more": {"model": {"name": "a"}}}
    after = {"split": network(nn.Tanh()), "more": {"model": {"name": "b"}}}
    assert changed(before, after) == ['model.name is "b" (was "a")']


# -- in a run ---------------------------------------------------------------------------------------------------------


def run(recipe: Recipe = RECIPE, *, terms: tuple[Term, ...] = (), **options: Any) -> Trained:
    return train(small_split(), small_images(), recipe, regularizers=terms, device="cpu", **options)


def state_of(run: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_a_run_under_other_settings_is_refused_in_one_line_and_left_as_it_was(tmp_path: Path) -> None:
    run(out=tmp_path, watcher=StopAfter(1))
    before = state_of(tmp_path)
    with pytest.raises(UsageError) as caught:
        run(replace(RECIPE, lr=0.2, seed=1), out=tmp_path, resume=True)
    said = "training.lr is 0.2 (was 0.1), training.seed is 1 (was 0)"
    assert str(caught.value) == f"{tmp_path}: not the settings the run began with: {said}{END}"
    assert state_of(tmp_path) == before


def test_no_more_than_three_differences_are_spelled_out(tmp_path: Path) -> None:
    run(out=tmp_path, watcher=StopAfter(1))
    other = Recipe(epochs=4, batch_size=8, lr=0.2, momentum=0.5, seed=1)
    with pytest.raises(UsageError, match=r"training\.lr is 0\.2 \(was 0\.1\) and 2 more; give"):
        run(other, out=tmp_path, resume=True)


def test_settings_that_only_the_caller_knows_are_kept_and_compared(tmp_path: Path) -> None:
    run(out=tmp_path, watcher=StopAfter(1), settings={"model": {"init": "one"}})
    with pytest.raises(UsageError, match=re.escape('model.init is "two" (was "one")')):
        run(out=tmp_path, resume=True, settings={"model": {"init": "two"}})
    assert run(out=tmp_path, resume=True, settings={"model": {"init": "one"}}).stopped is None


def test_under_a_constant_learning_rate_more_epochs_end_in_the_weights_of_a_run_that_had_them_at_once(
    tmp_path: Path,
) -> None:
    short = replace(RECIPE, schedule="constant", epochs=1)
    whole = run(replace(short, epochs=3))
    run(short, out=tmp_path)
    longer = run(replace(short, epochs=3), out=tmp_path, resume=True)
    assert len(longer.history) == 3
    ours, theirs = longer.split.client.state_dict(), whole.split.client.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    with pytest.raises(UsageError, match=r"training\.epochs is 2 \(3 are done\)"):
        run(replace(short, epochs=2), out=tmp_path, resume=True)


def test_with_penalties_more_epochs_are_another_training(tmp_path: Path) -> None:
    short = replace(RECIPE, schedule="constant", epochs=1)
    run(short, terms=(TERM,), out=tmp_path)
    with pytest.raises(UsageError, match=r"training\.epochs is 3 \(was 1\)"):
        run(replace(short, epochs=3), terms=(TERM,), out=tmp_path, resume=True)


def test_a_time_budget_leaves_no_trace_in_a_run_that_goes_on_without_it(tmp_path: Path) -> None:
    steps = replace(RECIPE, batch_size=2, time_budget=None)
    whole = run(steps, terms=(Term("kmeans", kmeans(), Weight(0.1)),))
    stopped = run(replace(steps, time_budget=1e-6), terms=(Term("kmeans", kmeans(), Weight(0.1)),), out=tmp_path)
    assert (stopped.stopped, stopped.history[-1]["step"]) == ("time budget", 1)  # a part of the first epoch
    resumed = run(steps, terms=(Term("kmeans", kmeans(), Weight(0.1)),), out=tmp_path, resume=True)
    assert [each["step"] for each in resumed.history] == [48, 96, 144]
    ours, theirs = resumed.split.client.state_dict(), whole.split.client.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


class Notes(StopAfter):
    """Keeps what is noted."""

    def __init__(self) -> None:
        super().__init__(0)
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


def test_a_checkpoint_of_old_goes_on_is_noted_once_and_then_knows_its_settings(tmp_path: Path) -> None:
    run(out=tmp_path, watcher=StopAfter(1))
    forget_settings(tmp_path)
    first, second = Notes(), Notes()
    assert run(out=tmp_path, resume=True, watcher=first).stopped is None
    found = load(tmp_path).checkpoint
    assert found is not None
    assert found.state["settings"]["training"]["lr"] == 0.1
    run(out=tmp_path, resume=True, watcher=second)
    assert [len(each.lines) for each in (first, second)] == [1, 0]
    assert "does not say its settings" in first.lines[0]
