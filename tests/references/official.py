"""Small files in exactly the form of the official data sets.

CIFAR's files were written by Python 2's cPickle, protocol 2: strings are byte strings (opcodes U and T), arrays are
numpy.core.multiarray._reconstruct calls. Python 3 cannot write them, so the opcodes are spelled out here.
"""

import struct
from pathlib import Path

import numpy as np
from PIL import Image

Value = str | bytes | int | list | dict | np.ndarray


def python2_pickle(value: Value) -> bytes:
    """The value as Python 2 would have pickled it."""
    return b"\x80\x02" + _spell(value) + b"."


def _spell(value: Value) -> bytes:
    match value:
        case str() | bytes():
            return _spell_text(value.encode("latin-1") if isinstance(value, str) else value)
        case int():
            return b"J" + struct.pack("<i", value)
        case list():
            return b"](" + b"".join(map(_spell, value)) + b"e"
        case dict():
            return b"}(" + b"".join(_spell(key) + _spell(item) for key, item in value.items()) + b"u"
        case np.ndarray():
            return _spell_array(value)
    raise TypeError(value)


def _spell_text(text: bytes) -> bytes:
    return (b"U" + bytes([len(text)]) if len(text) < 256 else b"T" + struct.pack("<i", len(text))) + text


def _spell_array(array: np.ndarray) -> bytes:
    """_reconstruct(ndarray, (0,), 'b'), then its state: version, shape, dtype, order, bytes."""
    made = b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    kind = array.dtype.str[1:]
    dtype = b"cnumpy\ndtype\n" + _spell_text(kind.encode()) + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + _spell_text(array.dtype.str[:1].encode()) + b"NNN" + _spell(-1) + _spell(-1) + b"K\x00tb"
    shape = b"(" + b"".join(map(_spell, array.shape)) + b"t"
    return made + b"(K\x01" + shape + dtype + b"\x89" + _spell_text(array.tobytes()) + b"tb"


def write_cifar10(folder: Path, *, per_class: int = 2, seed: int = 0) -> Path:
    """cifar-10-batches-py with `per_class` images of each class in each of its six files."""
    root = folder / "cifar-10-batches-py"
    root.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    for name in [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]:
        labels = rng.permutation(np.repeat(np.arange(10), per_class)).tolist()
        content = {
            "batch_label": f"batch {name}",
            "labels": labels,
            "data": rng.integers(0, 256, (len(labels), 3072), dtype=np.uint8),
            "filenames": [f"{name}_{k}.png" for k in range(len(labels))],
        }
        (root / name).write_bytes(python2_pickle(content))
    meta = {"num_cases_per_batch": 10 * per_class, "label_names": [f"class{k}" for k in range(10)], "num_vis": 3072}
    (root / "batches.meta").write_bytes(python2_pickle(meta))
    return root


def write_cifar100(folder: Path, *, per_class: int = 5, seed: int = 0) -> Path:
    """cifar-100-python with `per_class` images of each fine class in both halves."""
    root = folder / "cifar-100-python"
    root.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    for name in ("train", "test"):
        fine = rng.permutation(np.repeat(np.arange(100), per_class))
        content = {
            "filenames": [f"{name}_{k}.png" for k in range(len(fine))],
            "batch_label": f"{name}ing batch 1 of 1",
            "fine_labels": fine.tolist(),
            "coarse_labels": (fine // 5).tolist(),
            "data": rng.integers(0, 256, (len(fine), 3072), dtype=np.uint8),
        }
        (root / name).write_bytes(python2_pickle(content))
    names = {"fine_label_names": [f"fine{k}" for k in range(100)], "coarse_label_names": [f"c{k}" for k in range(20)]}
    (root / "meta").write_bytes(python2_pickle(names))
    return root


def write_tiny_imagenet(folder: Path, *, n_classes: int = 3, n_train: int = 12, n_val: int = 4) -> Path:
    """tiny-imagenet-200 with fewer classes and images; one of them gray, as in the real one."""
    root = folder / "tiny-imagenet-200"
    rng = np.random.default_rng(0)
    wnids = [f"n0{k}44{7 - k}537" for k in range(n_classes)]
    rows = []
    for label, wnid in enumerate(wnids):
        (root / "train" / wnid / "images").mkdir(parents=True)
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("x.JPEG\t0\t0\t63\t63\n")
        for k in range(n_train):
            is_gray = label == 0 and k == 0
            save_noise(root / "train" / wnid / "images" / f"{wnid}_{k}.JPEG", rng, mode="L" if is_gray else "RGB")
    (root / "val" / "images").mkdir(parents=True)
    for k in range(n_classes * n_val):
        save_noise(root / "val" / "images" / f"val_{k}.JPEG", rng)
        rows.append(f"val_{k}.JPEG\t{wnids[k % n_classes]}\t0\t32\t44\t62")
    (root / "val" / "val_annotations.txt").write_text("\n".join(rows) + "\n")
    (root / "wnids.txt").write_text("\n".join(wnids) + "\n")
    (root / "words.txt").write_text("\n".join(f"{wnid}\tword" for wnid in wnids) + "\n")
    return root


def save_noise(path: Path, rng: np.random.Generator, *, mode: str = "RGB", size: tuple[int, int] = (64, 64)) -> Path:
    """An image file of noise, (width, height)."""
    shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], len(mode))
    Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(path)
    return path
