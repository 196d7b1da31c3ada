"""The only table from names to constructors. Everything a user can name in a config stands here with one line."""

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from splitveil.check import UsageError, one_of
from splitveil.cli.words import check_keys, gathered, place, said


@dataclass(frozen=True)
class Entry:
    """A name's constructor, loaded when it is used."""

    place: str  # module:attribute
    line: str

    def load(self) -> Any:
        """Import it."""
        module, _, attribute = self.place.partition(":")
        return getattr(importlib.import_module(module), attribute)


NETWORKS = {
    "small-cnn": Entry(
        "splitveil.networks:small_cnn", "three convolutions, two of them on the client; seconds an epoch on a CPU"
    ),
    "vgg11": Entry("splitveil.networks:vgg11", "VGG11-BN cut after two convolutions, as the literature does"),
    "resnet20": Entry("splitveil.networks:resnet20", "the CIFAR ResNet of 20 layers"),
    "resnet18": Entry("splitveil.networks:resnet18", "ResNet-18 with a stem for small images"),
    "mobilenet-v2": Entry("splitveil.networks:mobilenet_v2", "MobileNetV2 with a stem for small images"),
    "vit": Entry("splitveil.networks:vit", "a small vision transformer; its features are tokens"),
}

DATASETS = {
    "fashion": Entry("splitveil.data:fashion", "embedded subset of Fashion-MNIST, 28×28 gray, 10 classes, MIT"),
}

MECHANISMS = {
    "identity": Entry("splitveil.mechanisms:Identity", "send features as they are"),
    "clip": Entry("splitveil.mechanisms:Clip", "shrink each sample's features to a norm of at most `radius`"),
    "gaussian": Entry("splitveil.mechanisms:Gaussian", "add normal noise of standard deviation `std`"),
    "laplace": Entry("splitveil.mechanisms:Laplace", "add Laplace noise of scale `scale`"),
    "dropout": Entry("splitveil.mechanisms:Dropout", "zero a random share `rate` of the features, also when deployed"),
    "top-k": Entry("splitveil.mechanisms:TopK", "send only the `keep` largest features"),
    "quantize": Entry("splitveil.mechanisms:Quantize", "round to `levels` values between `low` and `high`"),
}

ENTROPY = "splitveil.regularizers.entropy"
REGULARIZERS = {
    "plain": Entry(f"{ENTROPY}:plain", "class variance: the baseline, and hard to beat"),
    "unlabeled": Entry(f"{ENTROPY}:unlabeled", "variance of the whole batch; needs no labels"),
    "kmeans": Entry(f"{ENTROPY}:kmeans", "spread about the nearest of K remembered centers a class"),
    "mixture": Entry(f"{ENTROPY}:mixture", "spread within the components of a Gaussian mixture a class"),
    "gated-pooling": Entry(f"{ENTROPY}:gated_pooling", "spread under the worst weighting gated attention finds"),
    "slots": Entry(f"{ENTROPY}:slots", "spread within slots of slot attention and gated cross-attention"),
    "mixture-prior": Entry(f"{ENTROPY}:mixture_prior", "cost under a mixture of its class, learned as training goes"),
    "hybrid": Entry(f"{ENTROPY}:hybrid", "K-means seeded by attention"),
    "correlated": Entry(f"{ENTROPY}:correlated", "log-determinant of a low-rank plus diagonal class covariance"),
    "staged": Entry(f"{ENTROPY}:staged", "gated pooling first, slots later"),
    "adversary": Entry("splitveil.regularizers.adversary:Adversary", "−log MSE of a decoder that is trained alongside"),
    "published": Entry(f"{ENTROPY}:published", "K-means as in the published code, its class index put right"),
    "notes-gated-pooling": Entry(f"{ENTROPY}:notes_gated_pooling", "literal: reports little, protects little"),
    "notes-slots": Entry(f"{ENTROPY}:notes_slots", "literal: closes its own gates, protects little"),
}

ATTACKS = {
    "ridge": Entry("splitveil.attacks:Ridge", "affine least squares in closed form; exact where everything is linear"),
    "decoder-conv": Entry("splitveil.attacks:DecoderAttack", "a plain convolutional decoder"),
    "decoder-residual": Entry("splitveil.attacks:DecoderAttack", "the literature's residual decoder"),
    "decoder-unet": Entry("splitveil.attacks:DecoderAttack", "an attention U-Net"),
    "decoder-residual-ssim": Entry("splitveil.attacks:DecoderAttack", "the residual decoder, trained for SSIM too"),
    "decoder-residual-label": Entry("splitveil.attacks:DecoderAttack", "the residual decoder, told the true label"),
    "decoder-residual-mean16": Entry("splitveil.attacks:Averaged", "the residual decoder on the mean of 16 releases"),
    "decoder-residual-mean4": Entry("splitveil.attacks:Averaged", "the same on 4"),
    "decoder-residual-mean64": Entry("splitveil.attacks:Averaged", "the same on 64"),
    "decoder-residual-lpips": Entry("splitveil.attacks:DecoderAttack", "the residual decoder, trained for LPIPS too"),
    "decoder-unet-mean16": Entry("splitveil.attacks:Averaged", "the U-Net on the mean of 16 releases"),
    "decoder-unet-label": Entry("splitveil.attacks:DecoderAttack", "the U-Net, told the true label"),
    "decoder-residual-logits": Entry("splitveil.attacks:DecoderAttack", "the residual one, told the server's logits"),
    "ridge-mean4": Entry("splitveil.attacks:Averaged", "least squares on the mean of 4 releases"),
    "ridge-mean16": Entry("splitveil.attacks:Averaged", "the same on 16"),
    "ridge-mean64": Entry("splitveil.attacks:Averaged", "the same on 64"),
    "decoder-unet-long": Entry("splitveil.attacks:DecoderAttack", "the U-Net, trained four times as long"),
    "decoder-residual-long-mean64": Entry("splitveil.attacks:Averaged", "the residual decoder so on the mean of 64"),
    "optimization-tv": Entry("splitveil.attacks:OptimizationAttack", "search over pixels with total variation"),
    "optimization-likelihood": Entry("splitveil.attacks:OptimizationAttack", "search under the noise's own likelihood"),
    "optimization-decoder": Entry("splitveil.attacks:OptimizationAttack", "search from a decoder's picture on"),
    "optimization-dip": Entry("splitveil.attacks:OptimizationAttack", "search over an untrained network's weights"),
    "generator-latent": Entry("splitveil.attacks:GeneratorAttack", "search in the latent space of a WGAN-GP"),
    "generator-decoder": Entry("splitveil.attacks:GeneratorAttack", "a decoder trained with a critic"),
    "diffusion": Entry("splitveil.attacks:DiffusionAttack", "posterior samples of a small diffusion model"),
    "diffusion-decoder": Entry("splitveil.attacks:DiffusionAttack", "the same, from a decoder's picture on"),
    "nearest": Entry("splitveil.attacks:Retrieval", "the attacker's own image that is sent most alike"),
    "nearest-8": Entry("splitveil.attacks:Retrieval", "the mean of the eight that are sent most alike"),
    "shadow": Entry("splitveil.attacks:ShadowAttack", "no queries: a client of the same family, and a decoder on it"),
    "shadow-head": Entry("splitveil.attacks:ShadowAttack", "the same, trained under the server's own head"),
    "label-probe-linear": Entry("splitveil.attacks:Probe", "reads the class from z_sent; paints nothing"),
    "label-probe-mlp": Entry("splitveil.attacks:Probe", "the same with a hidden layer"),
}


class Catalog(StrEnum):
    """What can be listed."""

    networks = "networks"
    datasets = "datasets"
    mechanisms = "mechanisms"
    regularizers = "regularizers"
    attacks = "attacks"


TABLES: dict[str, dict[str, Entry]] = {
    "networks": NETWORKS,
    "datasets": DATASETS,
    "mechanisms": MECHANISMS,
    "regularizers": REGULARIZERS,
    "attacks": ATTACKS,
}


def build(kind: str, settings: Mapping[str, Any], *, where: str) -> Any:
    """Construct `{name: …, option: value, …}`, or say in one line which word is wrong."""
    constructor, options, where = _entry(kind, settings, where)
    return construct(constructor, options, where=where)


def settled(kind: str, settings: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Every option of `{name: …, option: value, …}` as it will be: checked, and with the defaults of those left out."""
    constructor, options, where = _entry(kind, settings, where)
    values = _checked(constructor, options, where)
    return {key: values.get(key, each.default) for key, each in inspect.signature(constructor).parameters.items()}


def _entry(kind: str, settings: Mapping[str, Any], where: str) -> tuple[Any, dict[str, Any], str]:
    """The constructor that `{name: …}` means, the options beside the name, and where they stand."""
    options = dict(settings)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise UsageError(f"{where}: wanted {{name: …}}, got {dict(settings)!r}; see `splitveil list {kind}`")
    constructor = TABLES[kind][one_of(f"{where}: {kind.removesuffix('s')}", name, list(TABLES[kind]))].load()
    return constructor, options, f"{where}.{name}"


def construct(constructor: Any, options: Mapping[str, Any], *, where: str) -> Any:
    """Call a constructor with checked options: unknown and missing names, and wrong types, give one line."""
    return constructor(**_checked(constructor, options, where))


def _checked(constructor: Any, options: Mapping[str, Any], where: str) -> dict[str, Any]:
    from pydantic import TypeAdapter, ValidationError

    known = inspect.signature(constructor).parameters
    given = gathered(constructor, options, where)
    for name, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and name not in given:
            raise UsageError(f"{where}: needs {name!r}")
    values = {}
    for key, value in given.items():
        inside = where if key == "parts" else f"{where}.{key}"
        check_keys(value, known[key].annotation, inside)
        try:
            values[key] = TypeAdapter(known[key].annotation).validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise UsageError(f"{place(first, value, inside)}: {said(first)}") from None
    return values
