"""What a config says of a penalty beside its own words: the source's defaults, the accuracy to keep, and the schema."""

import json
import warnings
from pathlib import Path

import pytest
import yaml

from splitveil.check import UsageError
from splitveil.cli import show
from splitveil.cli.build import build_terms
from splitveil.cli.catalog import REGULARIZERS
from splitveil.cli.config import read_config, schema
from splitveil.regularizers.base import Progress, Usual
from splitveil.regularizers.entropy import KeepAccuracy, Surrogate, published
from splitveil.training import Term


def _term(words: str, *, name: str) -> Term:
    """The term of `{name: …, weight: 0.1, words}`, through the same reader as the command line's -s."""
    config = read_config(None, [f"regularizers=[{{name: {name}, weight: 0.1, {words}}}]"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the literal presets warn
        return build_terms(config.regularizers)[0]


def test_a_kept_accuracy_with_the_ramp_of_the_notes() -> None:
    term = _term("keep_accuracy: {floor: 0.8, start: 0.1, most: 0.5}", name="plain")
    made = term.regularizer
    assert isinstance(made, KeepAccuracy)
    assert (made.floor, made.strength, made.most, term.accuracy_floor) == (0.8, pytest.approx(0.1), 0.5, 0.8)
    short = _term("keep_accuracy: 0.7", name="plain")
    assert isinstance(short.regularizer, KeepAccuracy)
    assert (short.regularizer.floor, short.accuracy_floor) == (0.7, 0.7)


LITERAL = {
    "published": Usual(weight=16.0, warmup_epochs=1, shape="constant_step", scale=0.02),
    "notes-gated-pooling": Usual(warmup_epochs=5, scale=0.1),
    "notes-slots": Usual(warmup_epochs=3, scale=0.25),
}


@pytest.mark.parametrize("name", REGULARIZERS)
def test_a_term_is_used_as_its_source_says(name: str) -> None:
    term, usual = _term("", name=name), LITERAL.get(name, Usual())
    assert term.regularizer.usual == usual
    weight = term.weight
    assert weight.value == 0.1  # named, so not the source's
    assert (weight.warmup_epochs, weight.shape, weight.scale) == (usual.warmup_epochs, usual.shape, usual.scale)
    assert (term.clip_norm, term.gradient_decay) == (usual.clip_norm, usual.gradient_decay)


def test_what_a_user_names_comes_before_the_source() -> None:
    term = _term("warmup_epochs: 0, scale: 1, shape: ramp, ramp_epochs: 2, clip_norm: 3", name="notes-slots")
    assert (term.weight.warmup_epochs, term.weight.scale, term.weight.shape, term.clip_norm) == (0, 1.0, "ramp", 3.0)


def test_only_the_published_source_names_a_weight() -> None:
    assert build_terms([{"name": "published"}])[0].weight.value == 16
    with pytest.raises(UsageError, match="needs 'weight'"), pytest.warns(UserWarning, match="report little"):
        build_terms([{"name": "notes-slots"}])


def test_the_published_weight_is_sixteen_thousandths_over_the_learning_rate() -> None:
    weight = build_terms([{"name": "published"}])[0].weight
    for lr in (0.05, 0.01):
        assert weight(Progress(0, 1, 0, 9, lr, 0.05, None)) == pytest.approx(16 * 0.001 / lr)
    assert weight(Progress(0, 0, 0, 9, 0.05, 0.05, None)) == 0


def test_a_kept_accuracy_leaves_the_source_its_say() -> None:
    term = build_terms([{"name": "published", "keep_accuracy": 0.8}])[0]
    assert term.weight.warmup_epochs == 1
    assert term.regularizer.usual == published().usual


def test_the_schema_shows_every_word_with_its_default() -> None:
    whole = schema()
    entries = {e["title"]: e for e in whole["properties"]["regularizers"]["items"]["oneOf"]}
    assert set(entries) == set(REGULARIZERS)
    slots = entries["slots"]["properties"]
    assert {"gates", "threshold", "charging", "hinge", "n_slots", "weight", "keep_accuracy"} <= set(slots)
    assert slots["n_slots"]["default"] == 8
    assert entries["slots"]["required"] == ["name", "weight"]
    assert entries["published"]["required"] == ["name"]
    assert entries["notes-slots"]["properties"]["scale"]["default"] == 0.25
    shapes = whole["$defs"]
    assert {"dimension", "snr", "mass_power", "share"} == set(shapes["Gating"]["properties"])
    assert {"var_threshold", "quantile", "momentum"} == set(shapes["Tau"]["properties"])
    assert "shutoff" in shapes["Charging"]["properties"]
    said = json.dumps(whole)
    assert all(f'"{ref}"' in said for ref in shapes)
    references = {part.split('"')[0] for part in said.split('"#/$defs/')[1:]}
    assert references <= set(shapes)


def test_the_list_says_where_options_are(capsys: pytest.CaptureFixture[str]) -> None:
    show.catalog_table("regularizers", as_json=False)
    assert "splitveil config schema" in capsys.readouterr().out


def test_the_words_in_the_docs_are_words() -> None:
    text = (Path(__file__).parents[2] / "docs" / "surrogates.md").read_text(encoding="utf-8")
    (block,) = (part.split("```")[0] for part in text.split("```yaml\n")[1:])
    first, second = build_terms(yaml.safe_load(block)["regularizers"])
    assert isinstance(first.regularizer, Surrogate)
    assert isinstance(second.regularizer, Surrogate)
    assert (first.regularizer.charging.shutoff, second.regularizer.threshold.quantile) == (0.9, 0.5)


@pytest.mark.parametrize("name", LITERAL)
def test_the_docs_say_how_literal_presets_are_used(name: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "surrogates.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if "`constant" in line]
    (row,) = (cells for cells in rows if cells[0] == f"`{name}`")
    usual = LITERAL[name]
    assert row[1] == ("–" if usual.weight is None else f"{usual.weight:g}")
    assert [float(cell) for cell in row[2:4]] == [usual.warmup_epochs, usual.scale]
    assert row[4].startswith(f"`{usual.shape}`")
