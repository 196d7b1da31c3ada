"""Fewer bits than an undefended run of the same noise: compared on the command line, or said why not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from splitveil.bounds import Bound, Kind, compare
from splitveil.check import UsageError
from splitveil.cli.against import undefended_run
from splitveil.cli.main import run
from splitveil.evaluation import Result, suite_named
from worlds.finished_runs import make_runs

pytestmark = pytest.mark.xdist_group("against")  # what they share is made once

GAUSSIAN = "[{name: gaussian, std: 0.05}]"
RUNS = {"quiet": GAUSSIAN, "base": GAUSSIAN, "louder": "[{name: gaussian, std: 0.1}]", "silent": "[]", "mute": "[]"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    make_runs(root, RUNS)
    for name in ("quiet", "silent"):  # no run is another's client
        weights = root / name / "model" / "encoder.safetensors"
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
        ("silent", "mute", "without gaussian noise nothing bounds the bits"),
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


@pytest.mark.parametrize("command", ["attack", "evaluate"])
def test_a_run_is_not_compared_with_itself(
    runs: Path, call: Callable[..., str], capsys: pytest.CaptureFixture[str], command: str
) -> None:
    attacked(runs / "quiet", call)
    again = runs / "base" / ".." / "quiet"
    with pytest.raises(SystemExit) as stop:
        run([command, str(runs / "quiet"), "--undefended", str(again), "--suite", "cheap", "--device", "cpu"])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said == f"error: --undefended: {again} is the run itself; give another one, without its defense\n"


@pytest.mark.parametrize(
    "damage", [b"{", b"\xff\xfe", b"[]", b'{"schema_version": 0}'], ids=["cut", "binary", "list", "old"]
)
def test_a_damaged_result_of_the_other_run_is_named(runs: Path, call: Callable[..., str], damage: bytes) -> None:
    attacked(runs / "base", call)
    place = kept(runs / "base").with_name("result.json")
    place.write_bytes(damage)
    with pytest.raises(
        UsageError, match=r"base/attacks/cheap/result\.json cannot be read \(.+\); run `.+` again"
    ) as said:
        undefended_run(runs / "base", "cheap", of=runs / "quiet")
    assert "\n" not in str(said.value)


def test_a_result_that_lacks_a_key_is_named(runs: Path, call: Callable[..., str]) -> None:
    attacked(runs / "base", call)
    place = kept(runs / "base").with_name("result.json")
    words = json.loads(place.read_text())
    del words["attacks"]
    place.write_text(json.dumps(words))
    with pytest.raises(UsageError, match=r"result\.json cannot be read \(.* 'attacks' is missing"):
        undefended_run(runs / "base", "cheap", of=runs / "quiet")


@pytest.mark.parametrize("command", [["attack", "--workers", "2"], ["evaluate"]])
def test_a_copy_of_the_run_is_refused_before_anything_is_played(
    runs: Path, call: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str]
) -> None:
    attacked(runs / "base", call)
    copy = tmp_path / "copy"
    shutil.copytree(runs / "base", copy, ignore=shutil.ignore_patterns("attacks"))
    with pytest.raises(SystemExit) as stop:
        run([*command, str(copy), "--undefended", str(runs / "base"), "--suite", "cheap", "--device", "cpu"])
    assert stop.value.code == 2
    said = (
        f"error: --undefended: {runs / 'base'} is a result of this very client; give that of one without its defense\n"
    )
    assert capsys.readouterr().err == said
    assert not (copy / "attacks").exists()


@pytest.mark.parametrize("command", [["attack", "--workers", "2"], ["evaluate"]])
def test_a_run_of_other_images_is_refused_before_anything_is_played(
    runs: Path, call: Callable[..., str], capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    attacked(runs / "base", call)
    place = kept(runs / "base").with_name("result.json")
    words = json.loads(place.read_text())
    place.write_text(json.dumps(words | {"data": "others", "data_sha256": "0123456789"}))
    before = {file: file.stat().st_mtime_ns for file in (runs / "louder").rglob("*")}
    with pytest.raises(SystemExit) as stop:
        run([*command, str(runs / "louder"), "--undefended", str(runs / "base"), "--suite", "cheap", "--device", "cpu"])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: --undefended: {runs / 'base'} is a result on other images (others, 01234567) than")
    assert said.endswith("; attack the undefended client on these\n")
    assert {file: file.stat().st_mtime_ns for file in (runs / "louder").rglob("*")} == before
