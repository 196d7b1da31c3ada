"""Run directories: made once, opened again, and complete."""

import json
import os
import platform
from pathlib import Path

import numpy as np
import pytest
import yaml

from splitveil.check import UsageError
from splitveil.cli.config import read_config
from splitveil.cli.runs import PROBE, new_directory, open_run, read_run_config, system, write_environment
from splitveil.cli.train import carry_out, prepare
from splitveil.training.checkpoint import SCRATCH
from worlds.finished_runs import make_runs

pytestmark = pytest.mark.xdist_group("runs")  # what they share is made once


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_runs_are_numbered_and_each_gets_its_own() -> None:
    assert [new_directory(None) for _ in range(3)] == [Path("runs") / name for name in ("001", "002", "003")]
    Path("runs/017").mkdir()
    Path("runs/notes").mkdir()
    assert new_directory(None) == Path("runs/018")


def test_a_directory_that_holds_something_is_refused_and_one_that_a_kill_left_is_not() -> None:
    Path("run", SCRATCH).mkdir(parents=True)
    Path("run", PROBE).touch()
    assert new_directory(Path("run")) == Path("run")
    Path("run", "config.yaml").touch()
    with pytest.raises(UsageError, match="--resume run"):
        new_directory(Path("run"))


def test_a_run_that_goes_on_elsewhere_keeps_where_it_began() -> None:
    Path("env.json").write_text('{"torch": "of old"}')
    write_environment(Path())
    assert json.loads(Path("env.json").read_text()) == {"torch": "of old"}


@pytest.mark.parametrize(
    ("release", "library", "wanted"),
    [
        ("6.1.0-27-cloud-amd64", ("glibc", "2.36"), "Linux-6.1-x86_64-with-glibc2.36"),
        ("6.18.44-someone-v7", ("", ""), "Linux-6.18-x86_64"),
        ("somebody's own", ("", ""), "Linux-x86_64"),
    ],
)
def test_a_system_is_named_without_the_tag_of_its_builder(
    release: str, library: tuple[str, str], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {"system": "Linux", "release": release, "machine": "x86_64", "libc_ver": library}
    for name, fact in facts.items():
        monkeypatch.setattr(platform, name, lambda fact=fact: fact)
    assert system() == wanted


def test_a_result_has_the_notes_of_its_images_and_weights_are_as_readable_as_the_run() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (80, 28, 28), dtype=np.uint8)
    np.savez("heap.npz", images=np.concatenate([images, images[:3]]), labels=np.arange(83) % 2)
    words = ["data.source=heap.npz", "training.epochs=1", "training.batch_size=16"]
    Path("run").mkdir(mode=0o750)
    os.chmod("run", 0o750)
    result = carry_out(
        prepare(read_config(None, words), device="cpu"), Path("run"), label="run", device="cpu", quiet=True
    )
    assert result["data"]["notes"] == ["3 exact copies dropped"]
    Path("run/config.yaml").write_text("data: {source: heap.npz}\n")
    assert open_run("run").data.sha256 == result["data"]["sha256"]
    assert Path("run/checkpoint.safetensors").stat().st_mode & 0o777 == 0o640


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("finished")
    make_runs(root, {"noisy": "[{name: gaussian, std: 0.05}]"})
    return root / "noisy"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("std: 0.05", "std: 0.5"),
        ("name: gaussian\n  std:", "name: laplace\n  scale:"),
        ("mechanism:", "mechanism: []\nx:"),
    ],
)
def test_a_run_whose_mechanism_was_edited_is_refused(finished: Path, before: str, after: str) -> None:
    place = finished / "config.yaml"
    text = place.read_text()
    assert before in text
    edited = yaml.safe_load(text.replace(before, after))
    edited.pop("x", None)
    place.write_text(yaml.safe_dump(edited))
    try:
        with pytest.raises(UsageError) as said:
            open_run(finished)
    finally:
        place.write_text(text)
    now, was = json.dumps(edited["mechanism"]), '[{"name": "gaussian", "std": 0.05}]'
    assert str(said.value) == (
        f"{place}: mechanism is {now}, but the run was trained with {was} (model/manifest.json); "
        "put that back, or train a new run"
    )
    assert open_run(finished).config.mechanism == [{"name": "gaussian", "std": 0.05}]


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("model/manifest.json", "image_shape", 3),
        ("model/manifest.json", "image_shape", [1, 28]),
        ("model/manifest.json", "image_shape", [1, 28, 0]),
        ("model/manifest.json", "n_classes", "ten"),
        ("model/manifest.json", "mechanism", None),
        ("result.json", "data", 1),
        ("result.json", "accuracy", 2),
    ],
)
def test_a_run_with_a_file_of_the_wrong_kind_is_refused_in_one_line(
    finished: Path, name: str, key: str, value: object
) -> None:
    place = finished / name
    text = place.read_text()
    place.write_text(json.dumps({**json.loads(text), key: value}))
    try:
        with pytest.raises(UsageError, match=r"the run directory is damaged$") as said:
            open_run(finished)
    finally:
        place.write_text(text)
    assert key in str(said.value)
    assert open_run(finished).result["data"]


def test_images_whose_hash_is_not_known_are_not_those_of_the_run(finished: Path) -> None:
    place = finished / "result.json"
    text = place.read_text()
    place.write_text(json.dumps({**json.loads(text), "data": {}}))
    try:
        with pytest.raises(UsageError, match="hash differs"):
            _ = open_run(finished).data
    finally:
        place.write_text(text)


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}\n"])
def test_a_run_with_an_empty_config_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"config\.yaml: is empty; put back a copy"):
        read_run_config(tmp_path)
