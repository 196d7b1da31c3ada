"""The files and networks that `worlds.wrong_inputs` names: damaged, missing a part, or of the wrong kind."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from splitveil.cli.demo import MARK
from worlds.wrong_inputs import BUILD, GOOD, PRIVATE, SHORT, STARTED


def network(n_classes: int) -> nn.Sequential:
    """A network for color images."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(n_classes))


def ten_classes() -> nn.Sequential:
    """A network for gray images of ten classes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 8), nn.ReLU(), nn.Linear(8, 10))


def normed(n_classes: int) -> nn.Sequential:
    """A network that takes the statistics of vectors."""
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 8), nn.BatchNorm1d(8), nn.Linear(8, n_classes))


def make_files(folder: Path, call: Callable[..., Any]) -> None:
    """Write every file the words name; `call` runs a command in the folder."""
    _make_arrays(folder)
    _make_pictures(folder)
    (folder / "shown" / "protected" / "attacks" / "standard").mkdir(parents=True)
    (folder / "shown" / MARK).touch()
    (folder / "file").write_text("a file where a folder is wanted")
    (folder / "bad.yaml").write_text("training: {epochs: [\n")
    (folder / "list.yaml").write_text("- 1\n- 2\n")
    save_file({"weight": torch.zeros(1)}, folder / "other.safetensors")
    call("train", *SHORT, "--out", GOOD, "-q")
    _make_runs(folder)
    _make_memories(folder, call)


def _make_arrays(folder: Path) -> None:
    rng = np.random.default_rng(0)

    def pixels(n: int, size: int = 28) -> np.ndarray:
        return rng.integers(0, 256, (n, size, size), dtype=np.uint8)

    def roles(size: int = 28) -> dict[str, np.ndarray]:
        counts = {"train": 64, "auxiliary": 16, "selection": 16, "victims": 16}
        images = {f"{role}_images": pixels(n, size) for role, n in counts.items()}
        return images | {f"{role}_labels": np.arange(n) % 4 for role, n in counts.items()}

    eight, numbers, good = pixels(8), np.arange(8) % 2, roles()
    sets = {
        "images": good,
        "others": roles(),
        "odd": roles(size=27),
        "shared": {**good, "victims_images": good["train_images"][:16]},
        "heap": {"images": pixels(80), "labels": np.arange(80) % 4},
        "pickled": {"images": eight, "labels": np.array([{}] * 8, dtype=object)},
        "nothing": {"pictures": eight},
        "unlabeled": {"images": eight},
        "empty": {"images": eight[:0], "labels": numbers[:0]},
        "floats": {"images": eight / 255, "labels": numbers},
        "shape": {"images": eight.reshape(8, -1), "labels": numbers},
        "labels": {"images": eight, "labels": numbers[:5]},
        "negative": {"images": eight, "labels": numbers - 1},
        "rare": {"images": pixels(42), "labels": np.array([0] * 40 + [1] * 2)},
    }
    for name, arrays in sets.items():
        np.savez(folder / f"{name}.npz", **arrays)
    with (folder / "bare.npz").open("wb") as file:
        np.save(file, eight)
    (folder / "corrupt.npz").write_bytes(b"PK\x03\x04 not really")
    (folder / "truncated.npz").write_bytes((folder / "images.npz").read_bytes()[:-2000])


def _make_pictures(folder: Path) -> None:
    def picture(path: str, size: int = 8) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(len(path)).integers(0, 256, (size, size), dtype=np.uint8)
        Image.fromarray(noise).save(folder / path)

    for i in range(6):
        picture(f"pictures/cat/{'x' * (i + 1)}.png")
        picture(f"sizes/cat/{'x' * (i + 1)}.png", size=8 + i)
    (folder / "pictures" / "cat" / "broken.png").write_bytes(b"not a picture")
    picture("one-empty/cat/a.png")
    (folder / "one-empty" / "dog").mkdir()
    (folder / "no-pictures").mkdir()
    for name, content in (("cifar", b""), ("evil", b"cos\nsystem\n(S'touch ran'\ntR.")):
        batches = folder / name / "cifar-10-batches-py"
        batches.mkdir(parents=True)
        (batches / "data_batch_1").write_bytes(content)
        if content:
            (batches / "batches.meta").write_bytes(content)
    (folder / "tiny-imagenet").mkdir()
    (folder / "tiny-imagenet" / "wnids.txt").write_text("n01443537\n")


def _make_runs(folder: Path) -> None:
    def copy(name: str) -> Path:
        return Path(shutil.copytree(folder / GOOD, folder / name))

    def reword(run: Path, before: str, after: str) -> None:
        text = (run / "config.yaml").read_text()
        assert before in text
        (run / "config.yaml").write_text(text.replace(before, after))

    started = copy(STARTED)
    for name in ("model", "tensorboard"):
        shutil.rmtree(started / name, ignore_errors=True)
    for path in (*started.glob("checkpoint*"), started / "metrics.jsonl", started / "result.json"):
        path.unlink()
    (copy("broken-config") / "config.yaml").write_text("a: [")
    (copy("broken-manifest") / "model" / "manifest.json").write_text("{")
    (copy("empty-manifest") / "model" / "manifest.json").write_text("{}")
    manifest = copy("odd-manifest") / "model" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "image_shape": [28]}))
    (copy("odd-result") / "result.json").write_text('{"data": 1, "accuracy": 2}')
    (copy("no-weights") / "model" / "encoder.safetensors").unlink()
    os.truncate(copy("cut-weights") / "model" / "head.safetensors", 100)
    for path in copy("damaged").glob("checkpoint*"):
        os.truncate(path, 100)
    reword(copy("other-images"), "images.npz", "others.npz")
    reword(copy("gone-images"), "images.npz", "gone.npz")
    reword(copy("strange"), "images.npz", "others.npz")
    reword(copy("misfit"), "channels: 8", "channels: 4")
    reword(copy("edited"), "lr: 0.05", "lr: 0.5")


def _make_memories(folder: Path, call: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    shapes = {"keys": (300, 4), "values": (300, 4), "public": (60, 4), "queries": (10, 4), "wide": (10, 5)}
    for name, shape in shapes.items():
        rows = rng.standard_normal(shape).astype(np.float32)
        np.save(folder / f"{name}.npy", rows / np.linalg.norm(rows, axis=1, keepdims=True))
    np.save(folder / "nan.npy", np.full((300, 4), np.nan, np.float32))
    np.save(folder / "words.npy", np.array(["word"] * 300))
    call(*BUILD[:-1], "memory", *PRIVATE)
    shutil.copytree(folder / "memory", folder / "broken-memory")
    for path in (folder / "broken-memory").iterdir():
        os.truncate(path, path.stat().st_size // 2)
