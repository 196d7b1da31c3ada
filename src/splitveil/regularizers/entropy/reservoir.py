"""The last members seen, bounded: what K-means and mixtures are refitted from.

    room for min(capacity, 256 MiB / (dim · 4)) members, the newest kept          member i lies at place i mod room

Training batches are shuffled, so the newest members are a random sample of the epoch, and the one that fits the encoder
as it is now. A step costs one copy; nothing is asked of the device, which counts the members itself: so a recording can
add them (replay.py). A checkpoint holds only the part that is filled.
"""

from collections.abc import Mapping
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from splitveil.check import at_least

MOST_BYTES = 256 << 20  # of vectors: 65,536 members of 1,024 dimensions in float32


@final
class Reservoir(nn.Module):
    """A ring of the newest members with their labels."""

    points: Tensor
    labels: Tensor
    n_seen: Tensor  # members added since it was empty

    def __init__(self, *, capacity: int = 20_000) -> None:
        super().__init__()
        self.capacity = int(at_least("capacity", capacity, 1))

    def build(self, dim: int, *, like: Tensor) -> None:
        """Make the room."""
        room = max(1, min(self.capacity, MOST_BYTES // (dim * like.element_size())))
        self.register_buffer("points", torch.zeros(room, dim, dtype=like.dtype, device=like.device), persistent=False)
        self.register_buffer("labels", torch.zeros(room, dtype=torch.long, device=like.device), persistent=False)
        self.register_buffer("n_seen", torch.zeros((), dtype=torch.long, device=like.device), persistent=False)

    def __len__(self) -> int:
        """Asks the device."""
        return min(len(self.points), int(self.n_seen)) if self._buffers else 0

    @torch.no_grad()
    def add(self, points: Float[Tensor, "member dim"], labels: Int[Tensor, "member"]) -> None:
        """Keep these members; the oldest make way."""
        room = len(self.points)
        points, labels = points[-room:], labels[-room:]
        place = (self.n_seen + torch.arange(len(points), device=points.device)) % room
        self.points.index_copy_(0, place, points.to(self.points.dtype))
        self.labels.index_copy_(0, place, labels.to(self.labels.dtype))
        self.n_seen += len(points)

    def held(self) -> tuple[Float[Tensor, "member dim"], Int[Tensor, "member"]]:
        """What is in it, without members that are not finite. Asks the device: for the end of an epoch."""
        n = len(self)
        points, labels = self.points[:n], self.labels[:n]
        good = points.isfinite().all(1)
        return points[good], labels[good]

    def clear(self) -> None:
        """Forget all."""
        if self._buffers:
            self.n_seen.zero_()

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._buffers:
            n = len(self)
            destination[prefix + "held_points"] = self.points[:n].clone()
            destination[prefix + "held_labels"] = self.labels[:n].clone()
            destination[prefix + "next"] = torch.tensor(int(self.n_seen) % len(self.points))

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        names = [prefix + name for name in ("held_points", "held_labels", "next")]
        if all(name in state_dict for name in names) and self._buffers:
            points, labels, following = (state_dict[name] for name in names)
            is_full = len(points) == len(self.points)
            self.n_seen.fill_(len(points) + int(following) if is_full else len(points))
            self.points[: len(points)] = points
            self.labels[: len(labels)] = labels
        super()._load_from_state_dict({k: v for k, v in state_dict.items() if k not in names}, prefix, *rest)
