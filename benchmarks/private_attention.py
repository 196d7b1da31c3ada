"""Time of a private memory against exact attention: ratios measured in one run, medians, one thread.

    python benchmarks/private_attention.py                   CPU, 4 min → results/private_attention_speed_cpu.json
    python benchmarks/private_attention.py --device cuda     GPU, 2 min → results/private_attention_speed_cuda.json

d = d_v = 64, degree 2. Rivals on the CPU: softmax(βKq)V in three calls ("exact") and torch's
scaled_dot_product_attention ("fused"); on a GPU the latter in float32, float16 and bfloat16. Private
answers come with their standard errors and flags in every timing. Every try is kept under "tries", and what earlier
runs found under "earlier runs": the last run counts, whatever it says. On a GPU
private answers are a captured graph, once without it for comparison, and rivals are called as they are.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from splitveil.cli.runs import environment
from splitveil.private_attention import Bounds, DPTreeCrossAttention, PolynomialFeatures, PrivacySpec, PrivateKV

D, BETA, PART = 64, 2.0, 50_000
SMALL, LARGE = 1_000, 1_000_000  # rows of the two private memories
ROUNDS = 9  # each round times everything once, so that a busy moment hits all alike
WANTED = {
    "private: n = 1e6 over n = 1e3": 1.1,
    "batch 1, n = 1e6": 1000,
    "batch 64, n = 1e6": 500,
    "batch 1, n = 1e5": 40,
    "build rows/s": 50_000,
}
ROOT = Path(__file__).parent.parent


def power(n: int) -> str:
    """A power of ten as the labels have it."""
    text = f"1e{len(str(n)) - 1}"
    assert float(text) == n, f"{n} is no power of ten"
    return text


def unit_rows(n: int, seed: int, device: str = "cpu") -> Tensor:
    x = torch.randn(n, D, generator=torch.Generator(device).manual_seed(seed), device=device)
    return x / x.norm(dim=1, keepdim=True)


def build(n: int, *, device: str = "cpu") -> tuple[PrivateKV, float, float]:
    """A memory of n rows, made part by part, and rows a second of wall-clock time and of one core's time."""
    features = PolynomialFeatures(D, 2).taylor(BETA)
    builder = PrivateKV.builder(PrivacySpec(1.0, 1e-6), Bounds(1.0, 1.0, 1.0), features, D)
    spent = busy = 0.0
    for part in range(0, n, PART):
        rows = unit_rows(min(PART, n - part), part, device)
        start, mine = time.perf_counter(), time.process_time()
        builder.add(rows, rows)
        if device != "cpu":
            torch.cuda.synchronize()
        spent, busy = spent + time.perf_counter() - start, busy + time.process_time() - mine
    return builder.release(), n / spent, n / busy


def memories(sizes: tuple[int, ...], *, device: str) -> dict[str, PrivateKV]:
    """Memories by the number of rows they were built of."""
    return {power(n): build(n, device=device)[0] for n in sizes}


def seconds(call: Callable[[], Any], repeats: int, *, device: str) -> float:
    """On the CPU the process's own seconds: with one thread, the time taken less what others took of the core."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    for _ in range(repeats):
        call()
    if device != "cpu":
        torch.cuda.synchronize()
    return (clock() - start) / repeats


def race(runners: dict[str, tuple[Callable[[], Any], int]], *, device: str) -> dict[str, list[float]]:
    """Seconds of each runner in every round; in a round all take turns."""
    for call, _ in runners.values():
        seconds(call, 2, device=device)
    rounds: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(ROUNDS):
        for name, (call, repeats) in runners.items():
            rounds[name].append(seconds(call, repeats, device=device))
    return rounds


def medians(rounds: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(times) for name, times in rounds.items()}


def exact(q: Tensor, rows: Tensor) -> Callable[[], Tensor]:
    return lambda: torch.softmax(BETA * (q @ rows.T), dim=-1) @ rows


def fused(q: Tensor, rows: Tensor) -> Callable[[], Tensor]:
    q4, kv = q.reshape(1, 1, -1, D), rows[None, None]
    return lambda: scaled_dot_product_attention(q4, kv, kv, scale=BETA)


@torch.no_grad()
def on_cpu() -> dict[str, Any]:
    with one_thread():
        tries = {"build rows a second of one core": [build(50_000)[2] for _ in range(3)]}
    torch.set_num_threads(2)
    tries["build rows/s on two threads, wall-clock"] = [build(20_000)[1] for _ in range(20)]
    with one_thread():
        return timings(tries)


@contextmanager
def one_thread() -> Iterator[None]:
    """NumPy's too: a second one that waits for work after a product counts as time of the process."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def timings(tries: dict[str, list[float]]) -> dict[str, Any]:
    """Of private answers, their rivals and the tree."""
    small = memories((SMALL,), device="cpu")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    large = memories((LARGE,), device="cpu")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    rounds = race(cpu_calls(small | large), device="cpu")
    return {
        "seconds": medians(rounds),
        "build, medians": medians(tries),
        f"memory grown while building {power(LARGE)} rows, MiB": grown,
        "tree": tree_scaling(),
        "tries": rounds | tries,
    }


def cpu_calls(built: dict[str, PrivateKV]) -> dict[str, tuple[Callable[[], Any], int]]:
    """What is timed on the CPU, and how often in a round."""
    single, batch = unit_rows(1, 1)[0], unit_rows(64, 2)
    calls: dict[str, tuple[Callable[[], Any], int]] = {}
    for name, memory in built.items():
        calls[f"private, n = {name}, batch 1"] = (lambda m=memory: m.attend(single), 2000)
        calls[f"private, n = {name}, batch 64"] = (lambda m=memory: m.attend(batch), 50)
    for n in (10_000, 100_000, 1_000_000):
        rows = unit_rows(n, 3)
        for label, q in (("1", single[None]), ("64", batch)):
            repeats = max(1, 300_000 // n)
            calls[f"exact, n = {power(n)}, batch {label}"] = (exact(q, rows), repeats)
            calls[f"fused, n = {power(n)}, batch {label}"] = (fused(q, rows), repeats)
    return calls


def tree_scaling() -> list[dict[str, float]]:
    """The paper's structure (d = d_v = 4): numbers stored, seconds to set up, seconds a query."""
    found = []
    for n, degree in ((1_000, 2), (4_000, 2), (16_000, 2), (4_000, 1), (4_000, 3)):
        rows = unit_rows(n, 4)[:, :4].double()
        spec, bounds = PrivacySpec(1.0, 1e-6), Bounds(1.0, 1.0, 1.0)
        start = time.perf_counter()
        tree = DPTreeCrossAttention(rows, rows, spec, bounds, beta=1.0, degree=degree, seed=0)
        built = time.perf_counter() - start
        q = rows[:1]
        asked = statistics.median(seconds(lambda t=tree, q=q: t.attend(q), 20, device="cpu") for _ in range(5))
        found.append({"n": n, "features": tree.n_features, "space": tree.space, "set-up s": built, "query s": asked})
    return found


@torch.no_grad()
def on_cuda() -> dict[str, Any]:
    built = memories((SMALL, LARGE), device="cuda")
    tries = {"build rows/s": [build(LARGE, device="cuda")[1] for _ in range(3)]}
    rounds = race(cuda_calls(built), device="cuda")
    return {"seconds": medians(rounds), "build, medians": medians(tries), "tries": rounds | tries}


def cuda_calls(built: dict[str, PrivateKV]) -> dict[str, tuple[Callable[[], Any], int]]:
    """What is timed on a GPU, and how often in a round."""
    calls: dict[str, tuple[Callable[[], Any], int]] = {}
    queries = {b: unit_rows(b, b, "cuda") for b in (1, 64, 4096)}
    for b, q in queries.items():
        for name, memory in built.items():
            captured = memory.capture(b, device="cuda")
            calls[f"private, n = {name}, batch {b}"] = (lambda c=captured, x=q: c(x), 200)
            calls[f"private without a graph, n = {name}, batch {b}"] = (lambda m=memory, x=q: m.attend(x), 50)
    for n in (100_000, 1_000_000):
        rows = unit_rows(n, 3, "cuda")
        for b, q in queries.items():
            for dtype in (torch.float32, torch.float16, torch.bfloat16):
                label = f"fused {str(dtype).removeprefix('torch.')}, n = {power(n)}, batch {b}"
                calls[label] = (fused(q.to(dtype), rows.to(dtype)), 3)
    return calls


def summary(found: dict[str, Any]) -> dict[str, float]:
    """The ratios we want something of: every rival over the private answer of the large memory."""
    t, small, large = found["seconds"], f"private, n = {power(SMALL)}", f"private, n = {power(LARGE)}"
    ratios = {f"{large} over n = {power(SMALL)}, batch 1": t[f"{large}, batch 1"] / t[f"{small}, batch 1"]}
    for name, value in t.items():
        if not name.startswith("private"):
            batch = name.rsplit(" ", 1)[1]
            ratios[f"{name}: over private"] = value / t[f"{large}, batch {batch}"]
    return ratios


def earlier(out: Path) -> list[dict[str, Any]]:
    """What the runs before this one found, without their tries: a run is not chosen for its numbers."""
    if not out.exists():
        return []
    last = json.loads(out.read_text())
    left_out = ("command", "wanted", "seconds", "tries", "tree", "earlier runs")
    return [*last.get("earlier runs", []), {name: fact for name, fact in last.items() if name not in left_out}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    torch.set_num_threads(1)
    load, facts = os.getloadavg()[0], environment()
    found = on_cpu() if words.device == "cpu" else on_cuda()
    name = torch.cuda.get_device_name() if words.device == "cuda" else platform.processor() or platform.machine()
    result = {
        "command": f"python benchmarks/private_attention.py --device {words.device}",
        "machine": name,
        "load average before and after": [load, os.getloadavg()[0]],
        "wanted": WANTED,
        "ratios": summary(found),
        **found,
        "environment": facts,
    }
    out = words.out or ROOT / "results" / f"private_attention_speed_{words.device}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    result["earlier runs"] = earlier(out)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({k: v for k, v in result.items() if k not in ("seconds", "tries", "earlier runs")}, indent=1))
    for label, value in result["seconds"].items():
        print(f"{label:48s} {1e6 * value:12.1f} µs")


if __name__ == "__main__":
    main()
