"""The command line as a user meets it: exit codes, one line a mistake, nothing half-written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from splitveil.cli.main import run


class Said(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Run one command in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> Said:
        capsys.readouterr()
        code = 0
        try:
            run(words)
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Said(code, *capsys.readouterr())

    return call


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    """A tiny image set in a file."""
    rng = np.random.default_rng(0)
    arrays = {}
    for role, n in (("train", 64), ("auxiliary", 16), ("selection", 16), ("victims", 16)):
        arrays[f"{role}_images"] = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        arrays[f"{role}_labels"] = np.arange(n) % 4
    np.savez(tmp_path / "tiny.npz", **arrays)
    return "tiny.npz"


SHORT = ("-s", "training.epochs=1", "-s", "training.batch_size=16", "--device", "cpu")


def test_train_writes_a_run_that_evaluates_to_the_same_accuracy(call: Callable[..., Said], tiny: str) -> None:
    said = call("train", "-s", f"data.source={tiny}", *SHORT, "--out", "a", "--json")
    assert said.code == 0, said.err
    result = json.loads(said.out)
    assert {p.name for p in Path("a").iterdir()} >= {"config.yaml", "env.json", "metrics.jsonl", "result.json", "model"}
    again = json.loads(call("evaluate", "a", "--device", "cpu", "--json").out)
    assert again["accuracy"] == result["accuracy"]


def test_feeding_the_config_back_reproduces_the_run(call: Callable[..., Said], tiny: str) -> None:
    call("train", "-s", f"data.source={tiny}", *SHORT, "--seed", "3", "--out", "a", "-q")
    call("train", "-c", "a/config.yaml", "--device", "cpu", "--out", "b", "-q")
    first, second = (Path(d, "model", "head.safetensors").read_bytes() for d in "ab")
    assert first == second


def test_a_failed_gate_exits_with_one(call: Callable[..., Said], tiny: str) -> None:
    call("train", "-s", f"data.source={tiny}", *SHORT, "--out", "a", "-q")
    assert call("evaluate", "a", "--min-accuracy", "1.01", "-q", "--device", "cpu").code == 1
    assert call("evaluate", "a", "--min-accuracy", "0.0", "-q", "--device", "cpu").code == 0


def test_a_users_own_trained_model_is_cut_and_its_head_left_alone(
    call: Callable[..., Said], tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mynets.py").write_text(
        "from torch import nn\n"
        "def make(n_classes):\n"
        "    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(676, n_classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import mynets

    torch.manual_seed(1)
    model = mynets.make(4)
    save_file(model.state_dict(), "mine.safetensors")
    said = call(
        "train",
        "-s",
        f"data.source={tiny}",
        *SHORT,
        "--model",
        "mynets:make",
        "--init",
        "mine.safetensors",
        "-s",
        "model.cut=1",
        "-s",
        "model.bottleneck=null",
        "--freeze",
        "head",
        "--out",
        "a",
        "-q",
    )
    assert said.code == 0, said.err
    from splitveil import open_run

    opened = open_run("a")
    assert torch.equal(next(iter(opened.split.server.parameters())), model[3].weight)
    assert not torch.equal(next(iter(opened.split.client.encoder.parameters())), model[0].weight)


def test_list_doctor_config_and_data_check_answer(call: Callable[..., Said]) -> None:
    assert "gaussian" in call("list", "mechanisms").out
    assert "vgg11" in json.loads(call("list", "networks", "--json").out)
    assert "torch" in json.loads(call("doctor", "--json").out)
    assert "training:" in call("config", "show").out
    assert json.loads(call("config", "schema").out)["properties"]
    facts = json.loads(call("data", "check", "fashion", "--json").out)
    assert facts["roles"]["train"]["images"] >= 10_000


WRONG = {
    "bad yaml": (("train", "-c", "bad.yaml"), "bad.yaml"),
    "unknown key": (("train", "-s", "training.epoch=1"), "did you mean 'epochs'?"),
    "wrong type": (("train", "-s", "training.epochs=many"), "training.epochs"),
    "missing file": (("train", "-s", "data.source=nowhere.npz"), "nowhere.npz"),
    "corrupt npz": (("train", "-s", "data.source=corrupt.npz"), "corrupt.npz"),
    "wrong cut": (("train", "-s", "model.cut=features.99"), "features.99"),
    "negative noise": (("train", "-s", "mechanism.0.std=-1"), "std must be > 0"),
    "empty set": (("train", "-s", "data.source=empty.npz"), "empty"),
    "no write permission": (("train", "--out", "locked/run"), "locked"),
    "no such device": (("train", "--device", "cuda:7"), "cuda:7"),
    "unknown network": (("train", "--model", "vgg12"), "did you mean 'vgg11'?"),
    "unknown mechanism": (("train", "-s", "mechanism=[{name: gausian, std: 1}]"), "did you mean 'gaussian'?"),
    "unknown option": (("train", "-s", "mechanism=[{name: gaussian, sdt: 1}]"), "did you mean 'std'?"),
    "missing option": (("train", "-s", "mechanism=[{name: gaussian}]"), "needs 'std'"),
    "wrong option type": (("train", "-s", "mechanism=[{name: gaussian, std: loud}]"), "mechanism.0.gaussian.std"),
    "mechanism without a name": (("train", "-s", "mechanism=[{std: 1}]"), "name"),
    "model that is no module": (("train", "--model", "json:dumps"), "json:dumps"),
    "module that is not there": (("train", "--model", "nowhere.nets:make"), "nowhere.nets:make"),
    "missing weights": (("train", "--init", "nowhere.safetensors"), "nowhere.safetensors"),
    "a file as --out": (("train", "--out", "bad.yaml"), "bad.yaml"),
    "not a run": (("evaluate", "."), "not a run directory"),
    "resume with settings": (("train", "--resume", ".", "-s", "training.lr=1"), "--resume"),
    "resume of nothing": (("train", "--resume", "nowhere"), "nowhere"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_input_gives_one_line_and_leaves_nothing(call: Callable[..., Said], kind: str) -> None:
    words, says = WRONG[kind]
    Path("bad.yaml").write_text("training: {epochs: [\n")
    Path("corrupt.npz").write_bytes(b"PK\x03\x04 not really")
    np.savez("empty.npz", images=np.zeros((0, 28, 28), np.uint8), labels=np.zeros(0, np.int64))
    Path("locked").write_text("a file where a directory is wanted")
    before = sorted(p.name for p in Path().iterdir())
    said = call(*words)
    assert said.code == 2, said
    assert says in said.err
    assert said.err.strip().count("\n") == 0, said.err
    assert sorted(p.name for p in Path().iterdir()) == before
