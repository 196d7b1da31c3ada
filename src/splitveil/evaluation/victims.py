"""The victims of an evaluation, and the only place that reads their images.

    observe: x → z_sent, which an attack is handed          score: (x, x_hat) → one score per image and metric

Attacks live in another room, cannot name this class, and are never handed it.
"""

from collections.abc import Iterator
from typing import final

import torch

from splitveil.attacks import Oracle, Seen, Threat
from splitveil.check import RunError
from splitveil.data import Part
from splitveil.evaluation.judges import Judges
from splitveil.evaluation.samples import to_pixels
from splitveil.metrics import Scores, has_ssim, lpips, mse, psnr, ssim
from splitveil.randomness import SeededSource
from splitveil.types import Images, Labels, Pixels

CHUNK = 250  # victims at once
LPIPS_CHANNELS = (1, 3)


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

    def chunks(self) -> Iterator[slice]:
        """Rows to be attacked together."""
        return (slice(start, min(start + CHUNK, len(self))) for start in range(0, len(self), CHUNK))

    def observe(self, rows: slice, threat: Threat, *, seed: int) -> Seen:
        """What reaches the attacker of these victims: T releases of each, and their labels if it knows them.

        Guarantees: attacks with the same seed and T see the same noise, so they are compared on the same releases.
        """
        source = SeededSource(seed, "victims", rows.start)
        z_sent = self._oracle.release(self._part.images(rows), source=source, releases=threat.releases)
        return Seen(z_sent, self._part.labels[rows] if threat.label_known else None)

    @torch.no_grad()
    def score(self, rows: slice, x_hat: Images) -> dict[str, Scores]:
        """Every metric that these images have, one score per image."""
        x = self._part.images(rows)
        if x_hat.shape != x.shape or not x_hat.isfinite().all():
            raise RunError(f"an attack must answer with {tuple(x.shape)} finite numbers, got {tuple(x_hat.shape)}")
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
