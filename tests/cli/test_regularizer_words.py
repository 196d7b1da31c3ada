"""From the words of a config down to the object: every knob of a surrogate, and one line for each that has no place."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from references.steps import clouds, make_step
from splitveil.check import UsageError
from splitveil.cli.build import build_terms
from splitveil.cli.catalog import REGULARIZERS
from splitveil.cli.config import read_config
from splitveil.regularizers.base import Regularizer
from splitveil.regularizers.entropy import (
    Charging,
    Correlated,
    Fitting,
    GatedPooling,
    Hybrid,
    KMeans,
    Log,
    Mixture,
    MixturePrior,
    Share,
    Slots,
    Snr,
    Softplus,
    Staged,
    Surrogate,
)
from splitveil.training import Term

GATED = ("plain", "kmeans", "mixture", "gated-pooling", "slots", "hybrid", "staged")  # by dimension and by class
GROUPED = ("kmeans", "mixture", "slots", "hybrid", "staged")
HINGED = ("plain", "unlabeled", "kmeans", "mixture", "gated-pooling", "slots", "hybrid", "staged")


def _term(words: str, *, name: str) -> Term:
    """The term of `{name: …, weight: 0.1, words}`, through the same reader as the command line's -s."""
    config = read_config(None, [f"regularizers=[{{name: {name}, weight: 0.1, {words}}}]"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the literal presets warn
        return build_terms(config.regularizers)[0]


def _built(words: str, *, name: str) -> Regularizer:
    return _term(words, name=name).regularizer


def _surrogate(words: str, *, name: str) -> Surrogate:
    """The surrogate of these words; the later one of two stages."""
    made = _built(words, name=name)
    made = made.second if isinstance(made, Staged) else made
    assert isinstance(made, Surrogate)
    return made


@pytest.mark.parametrize("name", GATED)
def test_gates_of_dimensions_and_classes(name: str) -> None:
    made = _surrogate("gates: {dimension: true, snr: true, share: true}", name=name)
    assert made.gates.has_dimension
    assert made.gates.snr == Snr()
    assert made.gates.share == Share()


@pytest.mark.parametrize("name", GROUPED)
def test_the_mass_gate_nested_or_flat(name: str) -> None:
    assert _surrogate("gates: {mass_power: 2}", name=name).gates.mass_power == 2
    assert _surrogate("mass_power: 3", name=name).gates.mass_power == 3


def test_constants_of_gates() -> None:
    words = "gates: {snr: {sharpness: 2, level: 0.3, floor: 1.0e-4}, share: {slope: 8, level: 0.1}}"
    gates = _surrogate(words, name="slots").gates
    assert gates.snr == Snr(sharpness=2, level=0.3, floor=1e-4)
    assert gates.share == Share(slope=8, level=0.1)
    running = _surrogate("gates: {share: running}", name="slots").gates
    assert running.share == Share(slope=None, level=None)


@pytest.mark.parametrize("name", HINGED)
def test_adaptive_tau_nested_or_flat(name: str) -> None:
    nested = _surrogate("form: log, threshold: {quantile: 0.5, var_threshold: 0.3, momentum: 0.9}", name=name)
    flat = _surrogate("form: log, quantile: 0.5, var_threshold: 0.3, momentum: 0.9", name=name)
    for made in (nested, flat):
        assert isinstance(made.hinge, Log)
        assert (made.threshold.quantile, made.threshold.var_threshold, made.threshold.momentum) == (0.5, 0.3, 0.9)


@pytest.mark.parametrize("name", HINGED)
def test_constants_of_hinges(name: str) -> None:
    assert _surrogate("form: log, pool: before_log, floor: 0.01", name=name).hinge == Log("before_log", 0.01)
    words = "form: softplus, hinge: {sharpness: 3, margin: 0.2, floor: 0.001}"
    assert _surrogate(words, name=name).hinge == Softplus("after_log", 3.0, 0.2, 1e-3)


@pytest.mark.parametrize("name", ["kmeans", "slots", "gated-pooling", "mixture", "hybrid", "staged", "plain"])
def test_charging_and_shutoff(name: str) -> None:
    words = "account: spread, through: true, class_weight: present, silent_calls: 7, shutoff: 0.9, snr: true"
    want = Charging(account="spread", through=True, class_weight="present", silent_calls=7, shutoff=0.9)
    made = _surrogate(words, name=name)
    assert made.charging == want
    assert (made.early.calls, made.early.opening) == (7, 0.9)
    nested = _surrogate("charging: {shutoff: running, space: layernorm}, gates: {snr: true}", name=name)
    assert nested.charging == Charging(shutoff="running", space="layernorm")


@pytest.mark.parametrize("name", [n for n in REGULARIZERS if not n.startswith(("notes", "published", "adversary"))])
def test_vectors(name: str) -> None:
    made = _built("vectors: {how: pool, side: 2}", name=name)
    for part in (made.first, made.second) if isinstance(made, Staged) else (made,):
        assert isinstance(part, Surrogate | Correlated | MixturePrior)
        assert (part.meter.vectors.how, part.meter.vectors.side) == ("pool", 2)


def _kmeans(made: Surrogate) -> Any:
    g = made.grouping.clusters if isinstance(made.grouping, Hybrid) else made.grouping
    assert isinstance(g, KMeans)
    return (g.n_groups, g.about, g.widest, made.memory.refit_every, made.memory.capacity)


def _slots(made: Surrogate) -> Any:
    assert isinstance(made.grouping, Slots)
    g = made.grouping
    return (g.n_slots, g.n_rounds, g.slot_dim, g.n_heads, g.sharpen, made.fitting)


def _mixture(made: Surrogate) -> Any:
    assert isinstance(made.grouping, Mixture)
    return (made.grouping.n_groups, made.grouping.covariance, made.grouping.about, made.memory.refit_every)


def _pooling(made: Surrogate) -> Any:
    assert isinstance(made.grouping, GatedPooling)
    return (made.grouping.hidden, made.fitting)


OWN: dict[str, tuple[str, Callable[[Surrogate], Any], Any]] = {
    "kmeans": (
        "n_groups: 3, center: batch, widest: 2, refit_every: 4, capacity: 99",
        _kmeans,
        (3, "batch", 2.0, 4, 99),
    ),
    "hybrid": (
        "n_groups: 3, center: batch, widest: 2, refit_every: 4, capacity: 99",
        _kmeans,
        (3, "batch", 2.0, 4, 99),
    ),
    "slots": (
        "n_slots: 4, n_rounds: 2, slot_dim: 16, n_heads: 2, sharpen: 2, fit: {rule: ascent, lr: 0.1, every: 3}",
        _slots,
        (4, 2, 16, 2, 2.0, Fitting("ascent", 0.1, 3)),
    ),
    "mixture": (
        "n_groups: 2, covariance: full, center: batch, refit_every: 3",
        _mixture,
        (2, "full", "batch", 3),
    ),
    "gated-pooling": ("hidden: 9, fit: likelihood", _pooling, (9, Fitting("likelihood", every=2))),
}


@pytest.mark.parametrize("name", OWN)
def test_options_of_a_grouping(name: str) -> None:
    words, seen, want = OWN[name]
    assert seen(_surrogate(words, name=name)) == want


def test_remembered_weights_and_the_rank_of_correlated_spread() -> None:
    grouping = _surrogate("weights: remembered", name="kmeans").grouping
    assert isinstance(grouping, KMeans)
    assert grouping.weights == "remembered"
    made = _built("rank: 3, refit_every: 2, capacity: 50", name="correlated")
    assert isinstance(made, Correlated)
    assert (made.rank, made.memory.refit_every, made.memory.capacity) == (3, 2, 50)


def test_the_knobs_of_the_literal_slots() -> None:
    words = "slot_dim: 16, sharpen: 3, mass_power: 1.5, snr: {level: 0.2}, share: {slope: 5}, margin: 0.1, shutoff: 0.7"
    made = _surrogate(words, name="notes-slots")
    assert (made.gates.snr, made.gates.share, made.gates.mass_power) == (Snr(level=0.2), Share(slope=5), 1.5)
    assert isinstance(made.hinge, Softplus)
    assert (made.hinge.margin, made.hinge.floor, made.charging.shutoff) == (0.1, 0.01, 0.7)
    assert made.charging.account == "spread"


def test_stages_share_their_hinge_and_the_slots_take_the_gates() -> None:
    made = _built("form: log, quantile: 0.5, gates: {snr: true, mass_power: 2}, shutoff: running", name="staged")
    assert isinstance(made, Staged)
    first, second = made.first, made.second
    assert isinstance(first, Surrogate)
    assert isinstance(second, Surrogate)
    assert first.threshold.quantile == second.threshold.quantile == 0.5
    assert first.gates.snr is None
    assert second.gates.snr == Snr()
    assert (first.charging.shutoff, second.charging.shutoff) == (None, "running")


@pytest.mark.parametrize("name", [n for n in REGULARIZERS if n in HINGED])
def test_what_words_build_charges_a_step(name: str) -> None:
    """All knobs at once, as far as a preset has them, down to a gradient."""
    words = "form: softplus, margin: 0.1, quantile: 0.5, snr: true, dimension: true, shutoff: 0.99"
    words += ", share: running" if name in GATED else ""
    words += ", mass_power: 2" if name in GROUPED else ""
    made = _built(words, name=name)
    z, y = clouds(24, 8, 3)
    for i in range(4):
        made.fit(make_step(z, y, n_classes=3, step=i, epoch=4 + i))
    z.requires_grad_()
    loss = made(make_step(z, y, n_classes=3, step=4, epoch=8)).loss
    (slope,) = torch.autograd.grad(loss, z)
    assert float(loss.detach()) > 0
    assert float(slope.abs().sum()) > 0


@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        ("slots", "gate: {snr: true}", "regularizers.0.slots: unknown option 'gate'; did you mean 'gates'?"),
        ("slots", "quantle: 0.5", "did you mean 'quantile'?"),
        ("slots", "gates: {dimesion: true}", "regularizers.0.slots.gates.dimesion: unknown key; did you mean"),
        ("slots", "gates: {snr: {levle: 1}}", "slots.gates.snr.levle: unknown key; did you mean 'level'?"),
        ("slots", "gates: {snr: high}", "slots.gates.snr: Input should be a valid boolean"),
        ("slots", "gates: 3", "slots.gates: Input should be a dictionary"),
        ("slots", "form: log, threshold: {quantile: 2}", "quantile must lie in [0, 1)"),
        ("slots", "form: log, quantile: 0.1, threshold: {quantile: 0.2}", "threshold.quantile: is said twice"),
        ("kmeans", "quantile: 0.5", "the information form is nowhere silent"),
        ("kmeans", "margin: 0.5", "the information form has no margin; form softplus has"),
        ("kmeans", "form: log, sharpness: 2", "the log form has no sharpness"),
        ("kmeans", "shutoff: 0.5", "add a dimension or snr gate"),
        ("kmeans", "shutoff: 2, gates: {snr: true}", "shutoff must lie in [0, 1)"),
        ("plain", "mass_power: 2", "here there is one group"),
        ("gated-pooling", "gates: {mass_power: 2}", "here there is one group"),
        ("unlabeled", "gates: {share: true}", "here there is one class"),
        ("mixture-prior", "gates: {snr: true}", "regularizers.0.mixture-prior: unknown option 'gates'"),
        ("correlated", "form: log", "regularizers.0.correlated: unknown option 'form'"),
        ("published", "form: linear", "regularizers.0.published: unknown option 'form'"),
        (
            "kmeans",
            "keep_accuracy: {flor: 0.8}",
            "0.keep_accuracy.flor: unknown key; did you mean 'floor'?",
        ),
    ],
)
def test_a_word_without_a_place_gives_one_line(name: str, words: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        _built(words, name=name)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
