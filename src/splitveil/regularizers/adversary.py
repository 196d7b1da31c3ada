"""A live adversary: a small decoder is trained beside the encoder, and the encoder is charged for what it decodes.

    penalty = −log MSE(x, D(z_sent))                      what the encoder descends: D stands still
    D       ← D − lr · Adam(∇ MSE(x, D(z_sent)))          what the decoder descends: z_sent stands still

The logarithm makes a halving of the error cost the same wherever it happens. What is defeated is this decoder and no
other: whether a larger one, trained longer after the fact, is defeated too must be measured. Source: adversarial
training of split clients, as ResSFL (Li et al., 2022) does it.
"""

import math
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from splitveil.check import at_least
from splitveil.networks.decoder_stem import Stem
from splitveil.networks.decoder_trunks import ConvTrunk
from splitveil.randomness import derive
from splitveil.regularizers.base import Penalty, Regularizer, Step
from splitveil.regularizers.entropy.adam import Adam
from splitveil.regularizers.entropy.parallel import average, world
from splitveil.types import Features, Images

LEAST_MSE = 1e-8  # a fortieth of a gray level; keeps the logarithm finite
GROUPS = 8  # channels are normalized in so many groups
EDGE = 0.02  # the mean image is kept this far from 0 and 1, where a logit is infinite


@final
class LiveDecoder(nn.Module):
    """z_sent → x̂: the plain convolutional decoder, normalized image by image.

    No statistics of a batch: an encoder could outrun running ones by moving its features, and ranks would disagree.
    """

    base: Tensor

    def __init__(self, feature_shape: tuple[int, ...], image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.stem = Stem(feature_shape, image_shape)
        self.trunk = ConvTrunk(self.stem.channels, self.stem.size, image_shape)
        _normalize_alone(self.trunk)
        self.register_buffer("base", torch.zeros(image_shape))

    @torch.no_grad()
    def calibrate(self, x: Images, z_sent: Features) -> None:
        """Take the units of the features and the mean image from the first batch."""
        self.stem.calibrate(z_sent)
        self.base.copy_(x.mean(0).clamp(EDGE, 1 - EDGE).logit())

    def forward(self, z_sent: Features) -> Images:
        logits: Tensor = self.trunk(self.stem(z_sent), None)
        return torch.sigmoid(logits.to(self.base.dtype) + self.base)


@final
class Adversary(Regularizer):
    """The encoder is charged −log MSE of a decoder that is trained on what it sends, `steps` of its own a step.

    Guarantees: own parameters get no gradient from `forward`; a step whose value or gradient is not finite is charged
    nothing, and counted; the state_dict restores decoder and optimizer exactly, also before the first step.
    """

    layout: Tensor
    n_broken: Tensor

    def __init__(self, *, lr: float = 1e-3, steps: int = 1) -> None:
        super().__init__()
        self.steps = int(at_least("steps", steps, 1))
        self.adam = Adam(lr=lr)
        self.decoder: LiveDecoder | None = None

    def forward(self, step: Step) -> Penalty:
        decoder = self._built(step)
        wants_gradient = torch.is_grad_enabled() and step.z_sent.requires_grad
        with torch.enable_grad():
            z_sent = step.z_sent.detach().requires_grad_(wants_gradient)
            error = _mse(decoder, step.x, z_sent)
            slope = torch.autograd.grad(error, z_sent)[0] if wants_gradient else torch.zeros_like(z_sent)
        whole = average(error.detach().clone(), world()).clamp_min(LEAST_MSE)  # of all ranks, which average gradients
        worth, slope = -whole.log(), -slope / whole
        is_fine = worth.isfinite() & slope.sum().isfinite()
        self.n_broken += ~is_fine
        worth, slope = torch.where(is_fine, worth, 0.0), torch.where(is_fine, slope, 0.0)
        still = torch.where(is_fine, step.z_sent - step.z_sent.detach(), 0.0)  # 0, with the gradient of z_sent
        loss = worth + (still * slope).sum()
        return Penalty(loss, {"mse": whole, "broken": self.n_broken.clone()})

    def fit(self, step: Step) -> None:
        decoder = self._built(step)
        parameters = list[Tensor](decoder.parameters())
        with torch.enable_grad():
            for _ in range(self.steps):
                error = _mse(decoder, step.x, step.z_sent.detach())
                self.adam.step(parameters, torch.autograd.grad(error, parameters), world())

    def broken_steps(self) -> Tensor | None:
        return None if self.decoder is None else self.n_broken

    def _built(self, step: Step) -> LiveDecoder:
        """The decoder, made when the first step shows the shapes."""
        if self.decoder is None:
            channels, height, width = step.x.shape[1:]
            facts = (int(step.z_sent.dtype == torch.float64), channels, height, width, *step.z_sent.shape[1:])
            decoder = self._build(facts, seed=step.progress.seed, device=step.z_sent.device)
            decoder.calibrate(step.x, step.z_sent.detach())
            if (here := world()).size > 1:
                for state in decoder.buffers():
                    average(state, here)
            return decoder
        if self.layout.device != step.z_sent.device:
            self.to(step.z_sent.device)
        return self.decoder

    def _build(self, facts: tuple[int, ...], *, seed: int, device: torch.device) -> LiveDecoder:
        is_double, channels, height, width, *feature_shape = facts
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(seed, "adversary"))
            decoder = LiveDecoder(tuple(feature_shape), (channels, height, width))
        self.decoder = decoder.to(device, torch.float64 if is_double else torch.float32)
        self.adam.build(list(decoder.parameters()))
        self.register_buffer("layout", torch.tensor(facts, device=device))
        self.register_buffer("n_broken", torch.zeros((), dtype=torch.long, device=device))
        return decoder

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        layout = state_dict.get(prefix + "layout")
        if layout is not None and self.decoder is None:
            self._build(tuple(layout.tolist()), seed=0, device=layout.device)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _mse(decoder: LiveDecoder, x: Images, z_sent: Features) -> Tensor:
    x_hat: Tensor = decoder(z_sent.to(decoder.base.dtype))
    return (x.to(x_hat.dtype) - x_hat).square().mean()


def _normalize_alone(module: nn.Module) -> None:
    """Group norms in place of batch norms."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, nn.GroupNorm(math.gcd(GROUPS, child.num_features), child.num_features))
        else:
            _normalize_alone(child)
