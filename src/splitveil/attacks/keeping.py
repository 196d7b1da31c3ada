"""What took long to find, on disk beside the fit in flight, so that an interrupted attack does not repeat it.

    <state>.<name>                              what was chosen on selection images
    <state>.<what was seen, hashed>.answer      the answers to one piece of the victims
    prior-<kind>-<facts, hashed>.fit            what was learned of images alone: it is the same for every client

All but priors is removed with the fit when the trial is finished: a prior serves whatever attack of the folder comes
next with the same images, seed and settings. A damaged file is found again by finding it anew.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from splitveil.attacks.base import REVISION, Health, Inverter
from splitveil.attacks.pairs import Seen
from splitveil.data import Part
from splitveil.fitting import Fitted
from splitveil.types import Images
from splitveil.writing import read_tensors, write_tensors

Found = dict[str, Tensor]


@final
class Keeping(Inverter):
    """`inverter`, asked once for each thing seen, `each` inputs at a time."""

    def __init__(self, inverter: Inverter, state: Path, each: int) -> None:
        self._inverter, self._state, self._each = inverter, state, each

    @property
    def health(self) -> Health:
        return self._inverter.health

    def __call__(self, seen: Seen) -> Images:
        return torch.cat([self._answer(piece) for piece in pieces(seen, self._each)])

    def _answer(self, seen: Seen) -> Images:
        place = beside(self._state, f"{_fingerprint(seen)}.answer")
        return once(place, lambda: {"x_hat": self._inverter(seen)}, device=seen.z_sent.device)["x_hat"]


def keeping(inverter: Inverter, state: Path | None, *, each: int) -> Inverter:
    """`inverter`, with its answers kept beside `state` if there is one."""
    return inverter if state is None else Keeping(inverter, state, each)


def once(place: Path | None, find: Callable[[], Found], *, device: torch.device) -> Found:
    """What `find` finds, or what it found when it was last asked and kept at `place`."""
    kept = None if place is None else read_tensors(place, device=device)
    if kept is not None:
        return kept[0]
    found = find()
    if place is not None:
        write_tensors(place, found)
    return found


def shared(state: Path | None, *, kind: str, facts: object, learned_from: Part, scored_on: Images) -> Path | None:
    """Where a prior of these images is kept; `facts` are its seed and all settings that it depends on."""
    if state is None:
        return None
    digest = hashlib.blake2b(repr((REVISION, facts, learned_from.image_shape)).encode(), digest_size=8)
    for key in learned_from.fingerprints():
        digest.update(key)
    _take_in(scored_on.mul(255).round().byte(), digest)  # exact: images are stored so
    return state.with_name(f"prior-{kind}-{digest.hexdigest()}.fit")


def learned_once(state: Path | None, place: Path | None, learn: Callable[[Path | None], Fitted]) -> Fitted:
    """What `learn` ends with, called with the file that its fit goes on from; a finished fit is left at `place`.

    In flight it is at `state`, which is its own: attacks that run at the same time do not write one file.
    """
    if state is None or place is None:
        return learn(None)
    if place.exists():
        return learn(place)
    fitted = learn(state)
    state.replace(place)
    return fitted


def pieces(seen: Seen, each: int) -> list[Seen]:
    """What was seen, `each` inputs at a time."""
    rows = [slice(i, i + each) for i in range(0, seen.z_sent.shape[1], each)]
    return [Seen(seen.z_sent[:, row], None if seen.y is None else seen.y[row]) for row in rows]


def beside(state: Path | None, name: str) -> Path | None:
    """A second file of the same fit."""
    return None if state is None else state.with_name(f"{state.name}.{name}")


def _fingerprint(seen: Seen) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for tensor in (seen.z_sent, seen.y):
        if tensor is not None:
            _take_in(tensor, digest)
    return digest.hexdigest()


def _take_in(tensor: Tensor, digest: hashlib.blake2b) -> None:
    digest.update(str(tuple(tensor.shape)).encode())
    digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
