"""`--resume` after config.yaml was edited: the same training goes on, and another one is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file

from splitveil.cli.build import build_split, build_terms
from splitveil.cli.catalog import REGULARIZERS
from splitveil.cli.config import read_config
from splitveil.cli.main import run
from splitveil.training.settings import outcome_words

RUN = "run"
Edit = Callable[[dict[str, Any]], Any]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        run(words)
    return int(stop.value.code or 0)


def start(*settings: str) -> None:
    """A finished run of one epoch."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for role in ("train", "auxiliary", "selection", "victims"):
        arrays |= {f"{role}_images": rng.integers(0, 256, (32, 8, 8), np.uint8), f"{role}_labels": np.arange(32) % 4}
    np.savez("images.npz", **arrays)
    every = ("data.source=images.npz", "training.epochs=1", "training.batch_size=16", *settings)
    assert call("train", *(f"--set={each}" for each in every), "--device=cpu", f"--out={RUN}", "-q") == 0


def edit(change: Edit) -> None:
    path = Path(RUN, "config.yaml")
    words = yaml.safe_load(path.read_text())
    change(words)
    path.write_text(yaml.safe_dump(words))


def resume() -> int:
    return call("train", "--resume", RUN, "--device=cpu", "-q")


def test_a_finished_run_does_not_take_on_another_mechanism(capsys: pytest.CaptureFixture[str]) -> None:
    start()
    manifest = Path(RUN, "model", "manifest.json").read_text()
    edit(lambda words: words["mechanism"][0].update(std=5.0))
    capsys.readouterr()
    assert resume() == 2
    assert capsys.readouterr().err == (
        "error: run: not the settings the run began with: mechanism.0.std is 5.0 (was 0.025); "
        "give the old ones back, or start a new run with another --out\n"
    )
    assert Path(RUN, "model", "manifest.json").read_text() == manifest


def test_what_changes_nothing_may_be_edited_and_what_charges_otherwise_may_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    start("regularizers=[{name: kmeans, weight: 1}]")
    Path("images.npz").rename("moved.npz")
    edit(lambda words: words["data"].update(source="moved.npz"))
    edit(lambda words: words["data"]["decoding"].update(workers=1))
    edit(lambda words: words["training"].update(time_budget=500))
    edit(lambda words: words["model"].update(cut="features.pool2"))
    edit(lambda words: words["regularizers"][0].update(weight=1.0, n_groups=5, warmup_epochs=0, max_broken=7))
    assert resume() == 0
    edit(lambda words: words["regularizers"][0].update(n_groups=4, keep_accuracy=0.5))
    capsys.readouterr()
    assert resume() == 2
    said = capsys.readouterr().err
    assert "regularizers.0.n_groups is 4 (was 5)" in said
    assert 'regularizers.0.keep_accuracy is {"floor": 0.5,' in said


def test_first_weights_are_known_by_their_content(capsys: pytest.CaptureFixture[str]) -> None:
    config = read_config(None, ["model.bottleneck=null", "mechanism=[]"])
    split = build_split(config, image_shape=(1, 8, 8), n_classes=4)
    whole = {**split.client.encoder.state_dict(), **split.server.head.state_dict()}
    weights = {name.removeprefix("body."): value for name, value in whole.items() if name.startswith("body.")}
    save_file(weights, "first.safetensors")
    start("model.init=first.safetensors")
    Path("first.safetensors").rename("second.safetensors")
    edit(lambda words: words["model"].update(init="second.safetensors"))
    assert resume() == 0
    save_file({name: torch.zeros_like(value) for name, value in weights.items()}, "second.safetensors")
    capsys.readouterr()
    assert resume() == 2
    assert "began with: model.init is " in capsys.readouterr().err


def test_a_run_without_a_checkpoint_starts_over_under_what_its_config_says_now() -> None:
    start()
    for path in Path(RUN).glob("checkpoint*"):
        path.unlink()
    edit(lambda words: words["training"].update(seed=3))
    assert resume() == 0
    assert json.loads(Path(RUN, "result.json").read_text())["seed"] == 3


@pytest.mark.filterwarnings("ignore:fit=.penalty:UserWarning")
@pytest.mark.parametrize("name", REGULARIZERS)
def test_the_words_of_every_regularizer_are_the_same_when_it_is_built_again(name: str) -> None:
    config = read_config(None, [f"regularizers=[{{name: {name}, weight: 1, keep_accuracy: 0.5}}]"])
    split = build_split(config, image_shape=(1, 28, 28), n_classes=10)
    first, again = (
        outcome_words(split, config.training, build_terms(config.regularizers))["regularizers"] for _ in range(2)
    )
    assert first == again
    assert " object at " not in json.dumps(first)
    assert {"name", "weight", "keep_accuracy"} < {*first[0]}
