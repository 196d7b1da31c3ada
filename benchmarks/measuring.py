"""What every benchmark needs: a clock that waits for the device, and one way to publish what it found."""

import json
import time
from pathlib import Path
from typing import Any

import torch


def now(device: torch.device) -> float:
    """Seconds, once the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def publish(result: dict[str, Any], out: Path | None, *, is_shown: bool = True) -> None:
    """Print a result, and write it where asked."""
    text = json.dumps(result, indent=2, ensure_ascii=False)
    if is_shown:
        print(text)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n")
