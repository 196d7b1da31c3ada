"""Settings from words: merging, complete output, and one clear line for each kind of mistake."""

from pathlib import Path

import pytest
import yaml

from splitveil.check import UsageError
from splitveil.cli.config import Config, as_words, parse, read_config, schema, to_yaml


def test_a_complete_config_fed_back_is_the_same() -> None:
    config = read_config(None, ["training.epochs=3", "training.augment.flip=true", "model.bottleneck=null"])
    assert parse(yaml.safe_load(to_yaml(config))) == config


def test_file_comes_before_overrides_and_after_defaults(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("training: {epochs: 3, lr: 0.2}\n")
    config = read_config(path, ["training.lr=1e-3"])
    assert (config.training.epochs, config.training.lr, config.training.batch_size) == (
        3,
        1e-3,
        Config().training.batch_size,
    )


def test_an_override_reaches_into_a_list() -> None:
    assert read_config(None, ["mechanism.0.std=0.5"]).mechanism == [{"name": "gaussian", "std": 0.5}]


def test_the_schema_describes_every_top_level_key() -> None:
    assert set(schema()["properties"]) == set(as_words(Config()))


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("training.epoch=3", "training.epoch: unknown key; did you mean 'epochs'?"),
        ("trainig.epochs=3", "did you mean 'training'?"),
        ("training.epochs=three", "training.epochs"),
        ("training.epochs=0", "epochs must be ≥ 1"),
        ("training.lr=-1", "lr must be > 0"),
        ("training.optimizer=adam", "training.optimizer"),
        ("training.augment.crops=1", "did you mean 'crop'?"),
        ("model.bottleneck.activation=tanh", "model.bottleneck"),
        ("mechanism.3.std=1", "is not a place in a list"),
        ("training", "-s wants key=value"),
        ("mechanism=[{", "not a YAML value"),
        ("training.lr.x=1", "training.lr"),
    ],
)
def test_a_wrong_override_gives_one_line_that_names_it(override: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_config(None, [override])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "says"), [("a: [1", "line"), ("- 1\n- 2\n", "key: value"), ("\x00", "YAML")])
def test_a_bad_file_gives_one_line_that_names_it(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_config(path)
    assert "bad.yaml" in str(caught.value)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_says_how_to_get_one() -> None:
    with pytest.raises(UsageError, match="config show"):
        read_config(Path("nowhere.yaml"))
