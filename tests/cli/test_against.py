"""Fewer bits than an undefended run of the same noise: compared on the command line, or said why not."""

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from splitveil.bounds import Bound, Kind, compare
from splitveil.cli.main import run
from splitveil.evaluation import Result, suite_named
from worlds.finished_runs import make_runs

GAUSSIAN = "[{name: gaussian, std: 0.05}]"
RUNS = {"quiet": GAUSSIAN, "base": GAUSSIAN, "louder": "[{name: gaussian, std: 0.1}]", "silent": "[]"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    make_runs(root, RUNS)
    weights = root / "quiet" / "model" / "encoder.safetensors"
    save_file({name: 0.5 * value for name, value in load_file(weights).items()}, weights)
    return root


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    from splitveil.cli import attack

    monkeypatch.setattr(attack, "suite_named", lambda name: suite_named(name).only(["ridge"]))

    def call(*words: str) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            run([*words, "--suite", "cheap", "--device", "cpu"])
        assert not stop.value.code, capsys.readouterr().err
        return capsys.readouterr().out

    return call


def kept(run: Path) -> Path:
    return run / "attacks" / "cheap" / "result-ridge.json"


def attacked(run: Path, call: Callable[..., str]) -> Result:
    """As if the whole suite had been played."""
    call("attack", str(run))
    kept(run).rename(whole := kept(run).with_name("result.json"))
    return Result.load(whole)


def fewest(bounds: tuple[Bound, ...]) -> float:
    return min(bound.value for bound in bounds if bound.unit == "bits")


@pytest.mark.parametrize("command", ["attack", "evaluate"])
def test_fewer_bits_are_compared_with_those_of_the_same_noise(
    runs: Path, call: Callable[..., str], command: str
) -> None:
    before = attacked(runs / "base", call)
    said = call(command, str(runs / "quiet"), "--undefended", str(runs / "base"))
    result = Result.load(kept(runs / "quiet"))
    (found,) = [bound for bound in result.bounds if bound.name == "entropy to MSE"]
    bits, bits_before = fewest(result.bounds), fewest(before.bounds)
    assert bits < bits_before
    assert found.value == compare(bits, bits_before, d=64) > 1
    assert found.kind is Kind.HEURISTIC
    for words in (found.statement(), "heuristic, 1 release: entropy to MSE", *found.holds_if):
        assert words in said
    assert "no comparison" not in said


@pytest.mark.parametrize(
    ("run", "other", "reason"),
    [
        ("quiet", "louder", "it has another mechanism; train it with the same noise"),
        ("silent", "silent", "without gaussian noise nothing bounds the bits"),
    ],
)
def test_what_does_not_compare_is_told_in_one_line(
    runs: Path, call: Callable[..., str], run: str, other: str, reason: str
) -> None:
    attacked(runs / other, call)
    said = call("attack", str(runs / run), "--undefended", str(runs / other))
    assert f"no comparison of bits with {runs / other}: {reason}" in said.splitlines()
    assert not any(bound.name == "entropy to MSE" for bound in Result.load(kept(runs / run)).bounds)


def test_a_run_with_a_regularizer_is_nobody_s_base(runs: Path, call: Callable[..., str]) -> None:
    attacked(runs / "base", call)
    place = runs / "base" / "config.yaml"
    text = place.read_text()
    assert "regularizers: []" in text
    place.write_text(text.replace("regularizers: []", "regularizers: [{name: kmeans, weight: 0.1}]"))
    try:
        said = call("attack", str(runs / "quiet"), "--undefended", str(runs / "base"))
    finally:
        place.write_text(text)
    assert "it has a regularizer; train it without" in said
