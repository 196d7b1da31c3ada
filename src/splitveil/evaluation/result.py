"""What an evaluation found: frozen records that survive JSON unchanged.

    Result.from_json(result.to_json()) == result

Numbers carry their intervals, flags carry their reasons, and the headline says itself when it should not be believed.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from splitveil.bounds import Bound
from splitveil.check import UsageError
from splitveil.evaluation.flags import Flag, FlagName
from splitveil.evaluation.suite import NotPlayed
from splitveil.metrics import Interval
from splitveil.writing import write_text

SCHEMA_VERSION = 2  # raised whenever a field changes its meaning


@dataclass(frozen=True)
class AttackResult:
    """What one attack under one threat model achieved, over all its seeds."""

    attack: str
    knowledge: str
    releases: int
    seeds: tuple[int, ...]
    mse: Interval
    psnr: Interval
    ssim: Interval | None  # None: the images are smaller than its window
    lpips: Interval | None  # None: neither gray nor RGB
    leak: Interval
    train_mse: float | None  # on the attacker's own images, mean over seeds
    selection_mse: float | None
    steps: int
    seconds: float  # all seeds, fitting and inverting, in all pieces; a shared prior counts where it was learned
    peak_memory_mb: float | None  # meanwhile, of the device, or of the process on a CPU
    flags: tuple[Flag, ...]
    peak_is_at_most: bool = False  # the peak is that of the process since it began

    @property
    def name(self) -> str:
        """Attack and threat model, as it is named in a result."""
        return f"{self.attack} ({self.knowledge})"

    @property
    def unreliable(self) -> bool:
        """Whether a flag was raised."""
        return bool(self.flags)


@dataclass(frozen=True)
class InferenceResult:
    """How often an adversary concluded rightly, without an image or from one that an attack painted."""

    name: str
    knowledge: str
    attack: str | None  # whose reconstructions were looked at; None: z_sent itself
    score: Interval  # share of victims for whom the guess was right
    chance: float  # the same for an attacker that saw nothing
    ceiling: Interval | None  # the same from the victims' own images; None: not measured
    seconds: float  # of fitting and guessing, or of training the judge and looking
    peak_memory_mb: float | None  # meanwhile; None: not known, as of a judge that an older version trained
    flags: tuple[Flag, ...] = ()
    peak_is_at_most: bool = False  # the peak is that of the process since it began

    @property
    def unreliable(self) -> bool:
        """Whether a flag was raised."""
        return bool(self.flags)


@dataclass(frozen=True)
class Result:
    """What a suite of attacks achieved against one client."""

    suite: str
    client: str  # fingerprint of weights and mechanism
    data: str
    data_sha256: str
    image_shape: tuple[int, int, int]
    n_victims: int
    seeds: tuple[int, ...]
    prior_mse: float  # of the mean auxiliary image
    attacks: tuple[AttackResult, ...]
    headline: str  # name of the attack with the lowest mean MSE
    headline_one_release: str  # the same among attacks that see one release of each input
    oracle_mse: Interval  # per-image minimum over all attacks: no attacker knows which one to take
    unreliable: bool
    reasons: tuple[str, ...]
    not_checked: tuple[str, ...]  # flags that could not be judged
    lpips_upsampled: bool  # images were enlarged to 64 pixels for LPIPS
    device: str
    versions: dict[str, str]
    inferences: tuple[InferenceResult, ...] = ()
    bounds: tuple[Bound, ...] = ()  # what no attack can beat, each with its kind and assumptions
    not_played: tuple[NotPlayed, ...] = ()  # of the suite, what could not be played here; none in older results
    schema_version: int = SCHEMA_VERSION

    def attack(self, name: str) -> AttackResult:
        """The result of that name."""
        for found in self.attacks:
            if found.name == name:
                return found
        raise UsageError(f"no attack {name!r} in this result; it has: {', '.join(a.name for a in self.attacks)}")

    @property
    def best(self) -> AttackResult:
        """The headline: the attack with the lowest mean MSE."""
        return self.attack(self.headline)

    def to_json(self) -> str:
        """As JSON text with stable order."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Result":
        """The result that `to_json` wrote."""
        try:
            words = json.loads(text)
            version = words["schema_version"]
        except (json.JSONDecodeError, KeyError, TypeError):
            raise UsageError("this is not a result of an evaluation: no JSON with a schema_version") from None
        if version != SCHEMA_VERSION:
            raise UsageError(f"this result has schema {version}, this version reads {SCHEMA_VERSION}; evaluate again")
        try:
            return cls._from_words(words)
        except (KeyError, TypeError, ValueError) as error:
            told = f"{error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())
            raise UsageError(f"this is not a whole result of an evaluation: {told}; evaluate again") from None

    @classmethod
    def _from_words(cls, words: dict[str, Any]) -> "Result":
        lists = {name: tuple(words[name]) for name in ("image_shape", "seeds", "reasons", "not_checked")}
        attacks = tuple(_attack(each) for each in words["attacks"])
        inferences = tuple(_inference(each) for each in words["inferences"])
        bounds = tuple(Bound.from_words(each) for each in words["bounds"])
        absent = tuple(NotPlayed(**each) for each in words.get("not_played", []))
        records = {"attacks": attacks, "inferences": inferences, "bounds": bounds, "not_played": absent}
        return cls(**words | lists | records | {"oracle_mse": Interval(**words["oracle_mse"])})

    def save(self, path: Path | str) -> None:
        """Write it as JSON; a killed write leaves the old file."""
        write_text(Path(path), self.to_json() + "\n")

    @classmethod
    def load(cls, path: Path | str) -> "Result":
        """Read what `save` wrote."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UsageError(f"{path}: no such result; run an evaluation first") from None


def suite_of(path: Path) -> str | None:
    """The suite whose result is kept there, whatever version wrote it; None where there is none."""
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["suite"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _inference(words: dict[str, Any]) -> InferenceResult:
    spans = {name: words[name] and Interval(**words[name]) for name in ("score", "ceiling")}
    return InferenceResult(**words | spans | {"flags": _flags(words.get("flags", []))})


def _attack(words: dict[str, Any]) -> AttackResult:
    scores = {name: words[name] and Interval(**words[name]) for name in ("mse", "psnr", "ssim", "lpips", "leak")}
    return AttackResult(**words | scores | {"flags": _flags(words["flags"]), "seeds": tuple(words["seeds"])})


def _flags(words: list[dict[str, str]]) -> tuple[Flag, ...]:
    return tuple(Flag(FlagName(flag["name"]), flag["reason"]) for flag in words)
