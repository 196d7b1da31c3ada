"""The victims of an evaluation, and the only place that reads their images.

    observe: x → z_sent, which an attack is handed          score: (x, x_hat) → one score per image and metric

Attacks live in another room, cannot name this class, and are never handed it.
"""

from collections.abc import Iterator
from functools import cached_property
from math import prod
from typing import final

import torch

from splitveil.attacks import Oracle, Seen, Threat
from splitveil.attacks.oracle import Releases, feature_shape
from splitveil.check import RunError
from splitveil.data import Part
from splitveil.evaluation.judges import Judges
from splitveil.evaluation.pictures import LPIPS_CHANNELS
from splitveil.evaluation.samples import to_pixels
from splitveil.metrics import Scores, has_ssim, lpips, mse, psnr, ssim
from splitveil.randomness import SeededSource
from splitveil.types import Images, Labels, Pixels

BLOCK = 250  # victims whose noise is drawn together, however many are attacked at once
BLOCKS_AT_ONCE = {"cuda": 4, "cpu": 1}
LARGE = 64 * 64  # pixels; of larger images one block at once
MOST = 2**28  # numbers handed over at once (1 GiB), where a block is not more by itself


@final
class Victims:
    """Images under attack."""

    def __init__(self, part: Part, oracle: Oracle) -> None:
        self._part, self._oracle = part, oracle

    def __len__(self) -> int:
        return len(self._part)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return self._part.image_shape

    def chunks(self, releases: int = 1) -> Iterator[slice]:
        """Rows to be attacked together, by who sees so many releases of each."""
        is_large = self.image_shape[1] * self.image_shape[2] > LARGE
        blocks = 1 if is_large else BLOCKS_AT_ONCE.get(self._part.device.type, 1)
        if blocks > 1:
            blocks = max(1, min(blocks, MOST // (BLOCK * releases * self._n_sent)))
        return self._slices(0, len(self), BLOCK * blocks)

    @cached_property
    def _n_sent(self) -> int:
        """Numbers in one release of one input."""
        return prod(feature_shape(self._oracle, self._part.images(slice(1))))

    def observe(self, rows: slice, threat: Threat, *, seed: int) -> Seen:
        """What reaches the attacker of these victims: T releases of each, and their labels if it knows them.

        Guarantees: attacks with the same seed and T see the same noise, so they are compared on the same releases.
        """
        z_sent = torch.cat(
            [self._release(part, threat, seed) for part in self._slices(rows.start, rows.stop, BLOCK)], 1
        )
        return Seen(z_sent, self._part.labels[rows] if threat.label_known else None)

    def _release(self, rows: slice, threat: Threat, seed: int) -> Releases:
        source = SeededSource(seed, "victims", rows.start)
        sent = self._oracle.release(self._part.images(rows), source=source, releases=threat.releases)
        if not sent.isfinite().all():
            raise RunError(f"the client sends NaN or infinite numbers for a victim of {rows.start} to {rows.stop - 1}")
        return sent

    @staticmethod
    def _slices(start: int, stop: int, size: int) -> Iterator[slice]:
        return (slice(at, min(at + size, stop)) for at in range(start, stop, size))

    @torch.no_grad()
    def score(self, rows: slice, x_hat: Images) -> dict[str, Scores]:
        """Every metric that these images have, one score per image."""
        x = self._part.images(rows)
        if x_hat.shape != x.shape:
            raise RunError(f"an attack must answer with images of shape {tuple(x.shape)}, got {tuple(x_hat.shape)}")
        if not x_hat.isfinite().all():
            raise RunError("an attack answered with NaN or infinite numbers; the client may send such while it learns")
        x_hat = x_hat.clamp(0, 1)
        scores = {"mse": mse(x, x_hat), "psnr": psnr(x, x_hat)}
        if has_ssim(self.image_shape):
            scores["ssim"] = ssim(x, x_hat)
        if self.image_shape[0] in LPIPS_CHANNELS:
            scores["lpips"] = lpips(x, x_hat)
        return {name: values.cpu() for name, values in scores.items()}

    @torch.no_grad()
    def judge(self, rows: slice, x_hat: Images, threat: Threat, judges: Judges) -> dict[str, Scores]:
        """What the judges see in these reconstructions, one score per image."""
        seen = judges.scores(self._part.images(rows), x_hat.clamp(0, 1), self._part.labels[rows], threat)
        return {name: values.cpu() for name, values in seen.items()}

    @property
    def all_labels(self) -> Labels:
        """The true classes of all victims."""
        return self._part.labels

    def labels(self, rows: slice) -> Labels:
        """The true classes, to score a guess with."""
        return self._part.labels[rows]

    def prior_mse(self, mean_image: Images) -> float:
        """Error of an attacker that saw nothing and answers with the mean auxiliary image."""
        errors = [mse(x := self._part.images(rows), mean_image.expand_as(x)) for rows in self.chunks()]
        return torch.cat(errors).mean().item()

    def pictures(self, index: list[int]) -> Pixels:
        """Originals for the sample sheet."""
        return to_pixels(self._part.images(torch.tensor(index, device=self._part.device)))
