"""Words → objects: the images, the cut network, the mechanism and the penalties that a config names."""

import hashlib
import importlib
import inspect
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from splitveil.check import UsageError, one_of
from splitveil.cli import catalog
from splitveil.cli.config import Config
from splitveil.data import ImageSet, read
from splitveil.mechanisms import Chain, Identity, Mechanism
from splitveil.randomness import derive
from splitveil.regularizers.base import Regularizer
from splitveil.regularizers.entropy import KeepAccuracy
from splitveil.split import Normalize, Split, cut
from splitveil.training import Term, Weight


def build_data(config: Config) -> ImageSet:
    """The images a config names."""
    words = config.data
    return read(words.source, roles=words.roles, people=words.people, decoding=words.decoding)


def build_split(config: Config, *, image_shape: tuple[int, int, int], n_classes: int, fresh: bool = True) -> Split:
    """The network a config names, cut and with its mechanism; `fresh=False` leaves `model.init` to the caller."""
    torch.manual_seed(derive(config.training.seed, "init"))
    model, default_cut = _model(config.model.name, image_shape=image_shape, n_classes=n_classes)
    if fresh and config.model.init is not None:
        load_weights(model, Path(config.model.init))
    after = default_cut if config.model.cut is None else str(config.model.cut)
    if after is None:
        raise UsageError(
            f"model.cut: say after which submodule {config.model.name} is cut, as in -s model.cut=features.3"
        )
    channels = image_shape[0]
    return cut(
        model,
        after=after,
        bottleneck=config.model.bottleneck,
        mechanism=build_mechanism(config.mechanism),
        normalize=Normalize(mean=(0.5,) * channels, std=(0.25,) * channels),
        example=torch.zeros(2, *image_shape),
    )


def model_words(config: Config) -> dict[str, Any]:
    """What a config says of its network, for a checkpoint; weights to start from are known by their content."""
    words, init = config.model, config.model.init
    listed = catalog.NETWORKS.get(words.name)
    after = listed.load().cut if words.cut is None and listed is not None else words.cut
    digest = None if init is None else f"sha256 {hashlib.sha256(Path(init).read_bytes()).hexdigest()[:16]}"
    return {"model": {"name": words.name, "cut": str(after), "bottleneck": words.bottleneck, "init": digest}}


def build_mechanism(settings: list[dict[str, Any]]) -> Mechanism:
    """The chain of mechanisms a config lists."""
    parts = [catalog.build("mechanisms", entry, where=f"mechanism.{i}") for i, entry in enumerate(settings)]
    if len(parts) == 1:
        only: Mechanism = parts[0]
        return only
    return Chain(parts) if parts else Identity()


@dataclass(frozen=True)
class Keep:
    """A selection accuracy to keep, and how the strength of a penalty may move: see `KeepAccuracy`."""

    floor: float
    start: float = 1.0
    least: float = 1e-3
    most: float = 1e3
    gain: float = 0.3


@dataclass(frozen=True)
class TermWords:
    """What a config says of a penalty beside the penalty's own options; a literal preset has defaults of its own."""

    weight: float
    warmup_epochs: int = 0
    shape: Literal["constant", "ramp", "cosine", "constant_step"] = "constant"
    ramp_epochs: int = 0
    scale: float = 1.0
    clip_norm: float | None = None
    gradient_decay: float = 0.0
    keep_accuracy: float | Keep | None = None  # push this penalty as far as this selection accuracy allows
    max_broken: int = 100


def build_terms(settings: list[dict[str, Any]]) -> list[Term]:
    """The penalties a config lists: `{name: …, weight: …}` and the options of each."""
    terms: list[Term] = []
    for i, entry in enumerate(settings):
        where = f"regularizers.{i}"
        shared = TermWords.__dataclass_fields__
        own = {key: value for key, value in entry.items() if key not in shared}
        regularizer = catalog.build("regularizers", own, where=where)
        said = {key: value for key, value in entry.items() if key in shared}
        words: TermWords = catalog.construct(TermWords, {**_usual(regularizer), **said}, where=where)
        weight = Weight(words.weight, words.warmup_epochs, words.shape, words.ramp_epochs, words.scale)
        keep = Keep(words.keep_accuracy) if isinstance(words.keep_accuracy, float) else words.keep_accuracy
        if keep is not None:
            regularizer = KeepAccuracy(regularizer, **asdict(keep))
        name = entry["name"] if all(t.name != entry["name"] for t in terms) else f"{entry['name']}-{i}"
        terms.append(
            Term(
                name,
                regularizer,
                weight,
                clip_norm=words.clip_norm,
                gradient_decay=words.gradient_decay,
                accuracy_floor=None if keep is None else keep.floor,
                max_broken=words.max_broken,
                options={**catalog.settled("regularizers", own, where=where), "keep_accuracy": keep},
            )
        )
    return terms


def _usual(regularizer: Regularizer) -> dict[str, Any]:
    """What the source of a penalty says of its weight and gradient, where it says anything."""
    words = asdict(regularizer.usual)
    return words if words["weight"] is not None else {key: value for key, value in words.items() if key != "weight"}


def load_weights(module: nn.Module, path: Path) -> None:
    """Read a safetensors file into a module, or say in one line why it does not fit."""
    try:
        weights = load_file(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such weights file") from None
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path}: not a readable safetensors file ({error})") from None
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"{path}: the weights do not fit the network: {reason}") from None


def _model(name: str, *, image_shape: tuple[int, int, int], n_classes: int) -> tuple[nn.Module, str | None]:
    facts = {"n_classes": n_classes, "image_shape": image_shape}
    if ":" not in name:
        one_of("model.name: network", name, [*catalog.NETWORKS])
        reference = catalog.NETWORKS[name].load()
        return reference(**facts), reference.cut
    module_name, _, attribute = name.partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"model.name: cannot load {name!r} ({error}); it must be importable from here") from None
    wanted = inspect.signature(factory).parameters
    try:
        model = factory(**{key: value for key, value in facts.items() if key in wanted})
    except Exception as error:  # whatever the user's own code raises
        raise UsageError(f"model.name: calling {name} failed: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise UsageError(f"model.name: {name} returned a {type(model).__name__}, wanted a torch nn.Module")
    return model, None
