"""Answers that took long to find, on disk beside the fit in flight, so that an interrupted attack does not repeat them.

<state>.<what was seen, hashed>.answer      one tensor; removed with the fit when the trial is finished
"""

import hashlib
from pathlib import Path
from typing import final

import torch
from safetensors.torch import load_file, save_file

from splitveil.attacks.base import Health, Inverter
from splitveil.attacks.pairs import Seen
from splitveil.types import Images
from splitveil.writing import replacing


@final
class Keeping(Inverter):
    """`inverter`, asked once for each thing seen."""

    def __init__(self, inverter: Inverter, state: Path) -> None:
        self._inverter, self._state = inverter, state

    @property
    def health(self) -> Health:
        return self._inverter.health

    def __call__(self, seen: Seen) -> Images:
        place = self._state.with_name(f"{self._state.name}.{_fingerprint(seen)}.answer")
        if place.exists():
            return load_file(place, device=str(seen.z_sent.device))["x_hat"]
        x_hat = self._inverter(seen)
        with replacing(place) as fresh:
            save_file({"x_hat": x_hat.contiguous()}, fresh)
        return x_hat


def keeping(inverter: Inverter, state: Path | None) -> Inverter:
    """`inverter`, with its answers kept beside `state` if there is one."""
    return inverter if state is None else Keeping(inverter, state)


def beside(state: Path | None, name: str) -> Path | None:
    """A second file of the same fit."""
    return None if state is None else state.with_name(f"{state.name}.{name}")


def _fingerprint(seen: Seen) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for tensor in (seen.z_sent, seen.y):
        if tensor is not None:
            digest.update(str(tuple(tensor.shape)).encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
