"""Finished trials on disk, so that an interrupted evaluation goes on where it stopped.

    <folder>/<attack>--<threat>-seed0.npz     every victim's scores, and samples where they may be kept
    <folder>/<attack>--<threat>-seed0.json    what it was and how it went; written last: it makes the trial finished
    <folder>/<attack>--<threat>-seed0.<fingerprint>.fit    a fit in flight; gone when the trial is finished
    <folder>/prior-…                          what attacks learned of images alone; gone when the whole suite is done

A stored trial counts only if its fingerprint (client, images, attack with all settings, threat, seed, the revision of
the attacks, and the server's half for an attacker who holds it) is the same.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import final
from zipfile import BadZipFile

import numpy as np
import torch

from splitveil.attacks import Health
from splitveil.attacks.base import REVISION
from splitveil.check import RunError
from splitveil.evaluation.gauge import Spent
from splitveil.evaluation.result import SCHEMA_VERSION
from splitveil.evaluation.roles import Roles
from splitveil.evaluation.samples import Samples, save_grid
from splitveil.evaluation.suite import Inquiry, Trial
from splitveil.evaluation.trial import Outcome
from splitveil.writing import drop, reason, replacing, write_text


@final
class Store:
    """Finished trials of one client on one set of images; without a folder, in memory alone.

    With `with_samples`, a trial that was stored without pictures is not finished.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        client: str,
        roles: Roles,
        n_victims: int,
        judged_by: str = "nobody",
        head: str = "none",
        with_samples: bool = False,
    ) -> None:
        self._folder, self._head, self._with_samples = folder, head, with_samples
        self._facts = (SCHEMA_VERSION, client, roles.sha256, n_victims, judged_by)
        self._held: dict[str, Outcome] = {}  # by fingerprint
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise RunError(f"cannot make {folder}: {reason(error)}") from None

    def get(self, trial: Trial | Inquiry, seed: int) -> Outcome | None:
        """The finished trial, if there is one of exactly this kind."""
        if self._folder is None:
            return self._held.get(self._fingerprint(trial, seed))
        place = self._place(trial, seed)
        try:
            words = json.loads(place.with_suffix(".json").read_text(encoding="utf-8"))
            if not self._is_finished(trial, seed, words):
                return None
            with place.with_suffix(".npz").open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                return _outcome(words, {name: torch.from_numpy(file[name]) for name in file.files})
        except (OSError, EOFError, KeyError, TypeError, ValueError, BadZipFile):
            return None  # unfinished or damaged: run it again

    def has(self, trial: Trial | Inquiry, seed: int) -> bool:
        """Whether such a trial is finished, as far as its facts alone tell."""
        if self._folder is None:
            return self._fingerprint(trial, seed) in self._held
        try:
            words = json.loads(self._place(trial, seed).with_suffix(".json").read_text(encoding="utf-8"))
            return self._is_finished(trial, seed, words)
        except (OSError, KeyError, TypeError, ValueError):
            return False

    def put(self, trial: Trial | Inquiry, seed: int, outcome: Outcome) -> None:
        """Keep a finished trial."""
        if self._folder is None:
            self._held[self._fingerprint(trial, seed)] = outcome
            return
        place = self._place(trial, seed)
        arrays = {f"score_{name}": values.numpy() for name, values in outcome.scores.items()}
        if (samples := outcome.samples) is not None:
            arrays |= {"index": np.array(samples.index), "mse": np.array(samples.mse)}
            arrays |= {"x": samples.x.numpy(), "x_hat": samples.x_hat.numpy()}
            with replacing(place.with_suffix(".png")) as fresh:
                save_grid(samples, fresh)
        else:
            drop(place.with_suffix(".png"))  # of a trial that this one takes the place of
        with replacing(place.with_suffix(".npz")) as fresh:
            np.savez_compressed(fresh, **arrays)  # type: ignore[arg-type]  # numpy's stub: arrays by name are not flags
        words = {
            "fingerprint": self._fingerprint(trial, seed),
            "attack": trial.attack.name,
            "settings": repr(trial.attack),
            "knowledge": trial.threat.name,
            "seed": seed,
            "mse": outcome.mean("mse"),
            "right": outcome.mean("right"),
            "health": asdict(outcome.health),
            "seconds": outcome.seconds,
            "judging": asdict(outcome.judging),
            "peak_memory_mb": outcome.peak_memory_mb,
            "peak_is_at_most": outcome.peak_is_at_most,
            "samples": outcome.samples is not None,
        }
        write_text(place.with_suffix(".json"), json.dumps(words, indent=2, ensure_ascii=False) + "\n")
        for left in self._folder.glob(f"{place.name}.*.fit*"):
            left.unlink(missing_ok=True)

    def state(self, trial: Trial | Inquiry, seed: int) -> Path | None:
        """Where a fit in flight may keep itself: found again by exactly the same trial."""
        if self._folder is None:
            return None
        return self._place(trial, seed).with_suffix(f".{self._fingerprint(trial, seed)[:16]}.fit")

    def forget_priors(self) -> None:
        """Remove what trials shared."""
        for left in () if self._folder is None else self._folder.glob("prior-*.fit*"):
            left.unlink(missing_ok=True)

    def _place(self, trial: Trial | Inquiry, seed: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{trial.slug}-seed{seed}"

    def _is_finished(self, trial: Trial | Inquiry, seed: int, words: dict[str, object]) -> bool:
        """Whether these words are of exactly this trial, with the pictures that are wanted of it."""
        is_whole = isinstance(trial, Inquiry) or not self._with_samples or bool(words.get("samples"))
        return is_whole and words["fingerprint"] == self._fingerprint(trial, seed)

    def _fingerprint(self, trial: Trial | Inquiry, seed: int) -> str:
        half = (self._head,) if trial.threat.head_known else ()
        facts = (*self._facts, REVISION, repr(trial.attack), repr(trial.threat), *half, seed)
        return hashlib.sha256(repr(facts).encode()).hexdigest()


def _outcome(words: dict[str, object], arrays: dict[str, torch.Tensor]) -> Outcome:
    scores = {name.removeprefix("score_"): value for name, value in arrays.items() if name.startswith("score_")}
    samples = None
    if "x" in arrays:
        index, mse = arrays["index"].tolist(), arrays["mse"].tolist()
        samples = Samples(tuple(index), tuple(mse), arrays["x"], arrays["x_hat"])
    health = Health(**words["health"])  # type: ignore[arg-type]
    older = {"seconds": words.get("judge_seconds", 0.0), "peak_memory_mb": None}  # did not tell more, or not even that
    judging = Spent(**words.get("judging", older))  # type: ignore[arg-type]
    at_most = words.get("peak_is_at_most", True)  # and had the peak of the process
    return Outcome(scores, health, words["seconds"], words["peak_memory_mb"], samples, judging, at_most)  # type: ignore[arg-type]
