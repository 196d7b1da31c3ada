"""The command line as a user meets it: exit codes, one line a mistake, nothing half-written."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from splitveil.cli.main import run
from worlds.finished_runs import Said


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
    assert call("evaluate", "a", "--min-accuracy", "1.0", "-q", "--device", "cpu").code == 1
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
    assert "extra cluster" in call("doctor").out
    assert "splitveil[" in call("doctor").out or "missing" not in call("doctor").out
    assert "training:" in call("config", "show").out
    assert json.loads(call("config", "schema").out)["properties"]
    facts = json.loads(call("data", "check", "fashion", "--json").out)
    assert facts["roles"]["train"]["images"] >= 10_000


def raising(error: Exception) -> Callable[..., None]:
    def stop(**_: object) -> None:
        raise error

    return stop


def test_a_network_too_large_for_any_machine_is_told_in_one_line(call: Callable[..., Said], tiny: str) -> None:
    size = "model.bottleneck.channels=100000000000000000"
    said = call("train", "-s", f"data.source={tiny}", *SHORT, "-s", size, "--out", "a")
    assert said.code == 3
    assert said.err.startswith("error: out of memory; lower training.batch_size or model.bottleneck.channels")
    assert said.err.count("\n") == 1
    assert not Path("a").exists()


def test_memory_that_the_cpu_lacks_is_told_in_one_line(
    call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("splitveil.cli.show.doctor", lambda **_: torch.empty(2**58, dtype=torch.float64))
    said = call("doctor")
    assert said.code == 3
    assert said.err.startswith(f"error: out of memory ({2**61} bytes were asked for at once); lower ")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has\nmore lines"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:80] DefaultCPUAllocator: not enough memory: you tried to …"),
        MemoryError(),
    ],
    ids=["cuda", "windows", "python"],
)
def test_every_way_to_run_out_of_memory_is_told_in_one_line(
    call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("splitveil.cli.show.doctor", raising(error))
    said = call("doctor")
    assert said.code == 3
    assert said.err.startswith("error: out of memory")
    assert said.err.count("\n") == 1


def test_any_other_error_of_the_program_stays_visible(
    call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("splitveil.cli.show.doctor", raising(RuntimeError("mat1 and mat2 shapes cannot be multiplied")))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        call("doctor")


def test_the_package_is_the_command():
    told = subprocess.run(
        [sys.executable, "-m", "splitveil", "list", "nothing"], capture_output=True, text=True, check=False
    )
    assert told.returncode == 2
    assert told.stderr.count("\n") == 1
    assert "mechanisms" in told.stderr
