"""`splitveil memory` as a user meets it."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from splitveil.check import UsageError
from splitveil.cli.memory import app


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """3,000 private rows, 400 public ones and queries, as arrays."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)

    def rows(n: int, d: int) -> np.ndarray:
        x = rng.standard_normal((n, d)).astype(np.float32) + np.float32(0.4)
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    for name, n in (("keys", 3000), ("pub", 400), ("queries", 50)):
        np.save(f"{name}.npy", rows(n, 4))
    np.save("values.npy", rows(3000, 4))
    np.save("docs.npy", np.arange(3000) // 3)
    return tmp_path


Run = Callable[..., str]


@pytest.fixture
def run(files: Path) -> Run:
    """Words → stdout; the caller's mistakes as the exception that the root command prints in one line."""

    def run(*words: str) -> str:
        result = CliRunner().invoke(app, list(words), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


BUILD = ("build", "keys.npy", "values.npy", "--epsilon", "1", "--delta", "1e-6", "--public", "pub.npy", "--out", "mem")


def test_build_query_report_and_audit_follow_each_other(run: Run, files: Path) -> None:
    said = run(*BUILD)
    assert "(1, 1e-06)-DP" in said
    assert {p.name for p in (files / "mem").iterdir()} == {"memory.json", "memory.safetensors"}
    said = run("query", "mem", "queries.npy", "--out", "answers.npz")
    assert "50 answers" in said
    with np.load("answers.npz") as answers:
        assert {name: answers[name].shape for name in answers} == {
            "output": (50, 4),
            "stderr": (50, 4),
            "snr": (50,),
            "flagged": (50,),
        }
    assert "(1, 1e-06)-differentially private" in run("report", "mem")
    assert json.loads(run("report", "mem", "--json"))["private"] is True
    assert "nothing wrong was found" in run("audit", "mem", "--releases", "2000")


def test_answers_are_near_exact_attention(run: Run) -> None:
    run(*BUILD[:3], "--epsilon", "8", "--public", "pub.npy", "--out", "mem")
    run("query", "mem", "queries.npy", "--out", "a.npz")
    keys, values, queries = (np.load(f"{name}.npy").astype(float) for name in ("keys", "values", "queries"))
    weights = np.exp(2.0 * queries @ keys.T)
    truth = weights @ values / weights.sum(1, keepdims=True)
    error = np.linalg.norm(np.load("a.npz")["output"] - truth, axis=1) / np.linalg.norm(truth, axis=1)
    assert np.median(error) < 0.05


@pytest.mark.parametrize(
    "words",
    [
        ("--features", "taylor", "--beta", "1"),
        ("--features", "nystrom", "--cells", "50"),
        ("--features", "codebook", "--cells", "20", "--beta", "12"),
        ("--degree", "3"),
        ("--adjacency", "replace_one"),
        ("--units", "docs.npy", "--document-rows", "2"),
        ("--prior",),
        ("--accuracy", "0.5"),
    ],
)
def test_every_way_to_build_gives_a_memory_that_answers(run: Run, words: tuple[str, ...]) -> None:
    run(*BUILD, *words)
    told = json.loads(run("query", "mem", "queries.npy", "--out", "a.npz", "--json"))
    assert told["queries"] == 50
    assert np.isfinite(np.load("a.npz")["output"]).all()


def test_without_public_rows_the_bounds_are_given_by_hand(run: Run) -> None:
    norms = ("--key-norm", "1", "--query-norm", "1", "--value-norm", "1")
    run("build", "keys.npy", "values.npy", "--epsilon", "1", "--features", "taylor", *norms, "--out", "mem")
    assert "‖k‖ ≤ 1" in run("report", "mem")


def test_a_seeded_build_says_so_and_fails_its_audit(run: Run) -> None:
    assert "NOT PRIVATE" in run(*BUILD, "--seed", "3")
    result = CliRunner().invoke(app, ["audit", "mem", "--releases", "1000"])
    assert result.exit_code == 1
    assert "WRONG: the noise came from a seed" in result.stdout


def test_a_memory_with_too_little_noise_fails_its_audit(run: Run) -> None:
    run(*BUILD)
    facts = json.loads(Path("mem/memory.json").read_text())
    facts["calibration"]["scale"] //= 2
    facts["calibration"]["mu"] *= 2
    Path("mem/memory.json").write_text(json.dumps(facts))
    result = CliRunner().invoke(app, ["audit", "mem", "--releases", "1000", "--json"])
    assert result.exit_code == 1
    assert any("too small" in line for line in json.loads(result.stdout)["wrong"])


def test_nothing_written_or_shown_depends_on_the_number_of_rows_or_clipped_rows(run: Run) -> None:
    said = [run(*BUILD)]
    for name in ("keys", "values"):
        np.save(f"{name}.npy", 50 * np.load(f"{name}.npy")[:1234])
    said.append(run(*BUILD[:-1], "mem2"))
    assert said[0] == said[1].replace("mem2", "mem")
    assert Path("mem/memory.json").read_text() == Path("mem2/memory.json").read_text()
    assert Path("mem/memory.safetensors").stat().st_size == Path("mem2/memory.safetensors").stat().st_size


def damage(name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    np.save(f"{name}.npy", change(np.load(f"{name}.npy").copy()))


def put_nan(x: np.ndarray) -> np.ndarray:
    x[7, 1] = np.nan
    return x


def put_private_row(public: np.ndarray) -> np.ndarray:
    public[5] = np.load("keys.npy")[42]
    return public


MISTAKES: dict[str, tuple[Callable[[], object], tuple[str, ...], str]] = {
    "nan": (lambda: damage("keys", put_nan), (), "keys.npy holds NaN or infinite"),
    "shape": (lambda: damage("keys", lambda x: x[:, :, None]), (), r"must be a non-empty \(n, d\) array of floats"),
    "empty": (lambda: damage("keys", lambda x: x[:0]), (), "non-empty"),
    "integers": (lambda: damage("keys", lambda x: x.astype(int)), (), "array of floats, got int64"),
    "lengths": (lambda: damage("values", lambda x: x[:10]), (), "they must agree"),
    "public width": (lambda: damage("pub", lambda x: x[:, :3]), (), r"must have 4 columns \(keys\) or 8"),
    "overlap": (lambda: damage("pub", put_private_row), (), "is also in keys.npy"),
    "epsilon": (lambda: None, ("--epsilon", "0"), "epsilon must be > 0"),
    "delta": (lambda: None, ("--delta", "1"), r"delta must lie in \(0, 1\)"),
    "accuracy": (lambda: damage("keys", lambda x: x[:40]) or damage("values", lambda x: x[:40]),
                 ("--accuracy", "0.1"), "too few rows for the accuracy asked"),
    "file": (lambda: Path("keys.npy").write_text("junk"), (), "is not a .npy file that can be read"),
    "pickle": (lambda: np.save("keys.npy", np.array([object()]), allow_pickle=True), (), "can be read"),
    "units": (lambda: damage("docs", lambda x: x[:5]), ("--units", "docs.npy"), "one id"),
    "beta": (lambda: None, ("--beta", "0"), "beta must be > 0"),
    "large beta": (lambda: None, ("--beta", "700"), "beta = 700 is too large.*lower it"),
    "huge beta": (lambda: None, ("--beta", "1e6"), "beta = 1e[+]06 is too large.*lower it"),
    "huge Taylor beta": (lambda: None, ("--features", "taylor", "--beta", "1e200"), "lower beta or the degree"),
    "query norm": (lambda: None, ("--query-norm", "1e300"), "query_norm 1e[+]300.*lower beta, query_norm"),
    "key norm": (lambda: None, ("--key-norm", "1e300"), "key_norm 1e[+]300.*keep key_norm near"),
    "value norm": (lambda: None, ("--value-norm", "1e308"), "value_norm must be ≤ 1e[+]150, got 1e[+]308; lower it"),
    "small key norm": (lambda: None, ("--key-norm", "1e-300"), "keep key_norm near"),
    "nystrom width": (lambda: [damage(n, lambda x: np.tile(x, 3)) for n in ("keys", "values", "pub")],
                      ("--features", "nystrom"), "d ≤ 8"),
}  # fmt: skip


@pytest.mark.parametrize(("prepare", "words", "says"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_told_in_one_line_and_nothing_is_written(
    files: Path, prepare: Callable[[], object], words: tuple[str, ...], says: str
) -> None:
    prepare()
    with pytest.raises(UsageError, match=says) as error:
        CliRunner().invoke(app, [*BUILD, *words], catch_exceptions=False)
    assert "\n" not in str(error.value)
    assert not (files / "mem").exists()


@pytest.mark.parametrize("words", [BUILD, ("demo",)], ids=["build", "demo"])
def test_a_negative_seed_is_refused_before_any_work(files: Path, words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*words, "--seed", "-1"])
    assert result.exit_code == 2
    assert "--seed" in result.output
    assert not (files / "mem").exists()


def test_a_query_with_too_large_a_beta_is_refused(run: Run) -> None:
    run(*BUILD)
    with pytest.raises(UsageError, match=r"beta = 1e[+]06 is too large"):
        run("query", "mem", "queries.npy", "--beta", "1e6", "--out", "a.npz")


def test_what_is_missing_is_told(run: Run) -> None:
    base = ("build", "keys.npy", "values.npy", "--epsilon", "1", "--out", "mem")
    with pytest.raises(UsageError, match="--key-norm"):
        run(*base)
    np.save("values.npy", np.load("values.npy")[:, :2])
    with pytest.raises(UsageError, match="give --value-norm"):
        run(*base, "--public", "pub.npy")
    norms = ("--key-norm", "1", "--query-norm", "1", "--value-norm", "1")
    with pytest.raises(UsageError, match="take --features taylor"):
        run(*base, *norms)
    with pytest.raises(UsageError, match="--prior needs"):
        run(*base, *norms, "--features", "taylor", "--prior")


def test_a_second_memory_in_the_same_folder_is_refused(run: Run) -> None:
    run(*BUILD)
    with pytest.raises(UsageError, match="costs privacy again"):
        run(*BUILD)


def test_queries_of_another_width_and_a_folder_that_is_none_are_told(run: Run) -> None:
    run(*BUILD)
    np.save("queries.npy", np.ones((3, 7), dtype=np.float32))
    with pytest.raises(UsageError, match="must have 4 columns"):
        run("query", "mem", "queries.npy", "--out", "a.npz")
    with pytest.raises(UsageError, match="cannot be read"):
        run("report", "nowhere")


@pytest.mark.parametrize("command", ["build", "query", "report", "audit"])
def test_help_has_an_example(command: str) -> None:
    said = CliRunner().invoke(app, [command, "--help"])
    assert said.exit_code == 0
    assert f"splitveil memory {command}" in said.stdout
