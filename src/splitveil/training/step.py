"""One training step, all of it.

    loss = cross_entropy(head(z_sent), y) + Σ_i weight_i · penalty_i

The penalties reach the encoder through z and never touch the head; a regularizer's own parameters are moved by its
`fit`. One backward of the sum is the sources' "stash, zero, blend". Where a term asks for its own gradient to be
clipped or smoothed, that gradient is taken apart and added after:

    g ← clip(∂(weight · penalty)/∂θ_encoder)        m ← decay · m + (1 − decay) · g        θ.grad += m
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from splitveil import check
from splitveil.data import Augment, Batch
from splitveil.randomness import NoiseSource, SeededSource, derive
from splitveil.regularizers.base import Penalty, Progress, Regularizer, Step
from splitveil.split import Split
from splitveil.training.device import Place
from splitveil.training.recipe import Recipe
from splitveil.training.schedule import Weight
from splitveil.types import Features, Images, Logits, Sent


@dataclass(frozen=True)
class Term:
    """One penalty in the loss: what it is, how much it weighs, and what is done to its gradient."""

    name: str
    regularizer: Regularizer
    weight: Weight
    clip_norm: float | None = None  # of this penalty's gradient in the encoder's parameters
    gradient_decay: float = 0.0  # 0: no smoothing over steps
    accuracy_floor: float | None = None  # of a regularizer that is pushed as far as this allows
    max_broken: int = 100  # steps without a finite penalty before the run is stopped
    options: Mapping[str, Any] | None = None  # all that the regularizer was built with; a checkpoint keeps it

    def __post_init__(self) -> None:
        if self.clip_norm is not None:
            check.positive("clip_norm", self.clip_norm, hint="leave it out for no clipping")
        check.fraction("gradient_decay", self.gradient_decay)

    @property
    def is_apart(self) -> bool:
        """Whether this term's gradient is handled by itself."""
        return self.clip_norm is not None or self.gradient_decay > 0


class Joint(nn.Module):
    """Client and server as one module, so that data parallelism wraps both at once."""

    def __init__(self, split: Split) -> None:
        super().__init__()
        self.client = split.client
        self.server = split.server

    def forward(self, x: Images, source: NoiseSource) -> tuple[Features, Sent, Logits]:
        """Clean features, what is sent, and the prediction."""
        z = self.client.encode(x)
        z_sent = self.client.mechanism(z, source=source)
        logits = self.server(z_sent)
        return z, z_sent, logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits


@dataclass(frozen=True)
class Outcome:
    """What one step showed, still on the device."""

    loss: Tensor
    n_correct: Tensor
    gauges: Mapping[str, Tensor]


class Stepper:
    """Forward, charge, backward, clip, move."""

    def __init__(
        self,
        place: Place,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        recipe: Recipe,
        terms: Sequence[Term],
        n_classes: int,
    ) -> None:
        self.place, self.model, self.optimizer = place, model, optimizer
        self.recipe, self.terms, self.n_classes = recipe, terms, n_classes
        self.momenta: dict[str, list[Tensor]] = {}
        joint = model if isinstance(model, Joint) else model.module
        assert isinstance(joint, Joint)
        self.joint = joint
        self.encoder = [p for p in joint.client.encoder.parameters() if p.requires_grad]
        self.trained = [p for p in joint.parameters() if p.requires_grad]

    def __call__(self, batch: Batch, progress: Progress) -> Outcome:
        """One step on one batch."""
        self._prepare(progress)
        x = self._augmented(batch, progress)
        source = SeededSource(progress.seed, "noise", progress.step, rows=batch.rows)
        with self.place.autocast():
            z, z_sent, logits = self.model(x, source)
        task = F.cross_entropy(logits, batch.y, label_smoothing=self.recipe.label_smoothing)
        step = Step(x, z, z_sent, batch.y, logits, self.joint.client.mechanism.noise_std, self.n_classes, progress)
        penalties = self._penalties(step)
        self._backward(task, penalties, progress)
        if self.recipe.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.trained, self.recipe.clip_norm)
        self.optimizer.step()
        gauges = {f"{name}/{key}": v for name, p in penalties.items() for key, v in self._shown(p).items()}
        return Outcome(task.detach(), (logits.detach().argmax(1) == batch.y).sum(), gauges)

    def _prepare(self, progress: Progress) -> None:
        self.place.seed_layers(derive(progress.seed, "layers", progress.step, self.place.rank))
        for group in self.optimizer.param_groups:
            group["lr"] = progress.lr
        self.optimizer.zero_grad(set_to_none=True)

    def _augmented(self, batch: Batch, progress: Progress) -> Tensor:
        augment: Augment = self.recipe.augment
        x = augment(batch.x, SeededSource(progress.seed, "augment", progress.step, rows=batch.rows))
        if self.recipe.precision == "float64":
            x = x.double()
        return x.contiguous(memory_format=torch.channels_last) if self.recipe.channels_last else x

    def _penalties(self, step: Step) -> dict[str, Penalty]:
        charged: dict[str, Penalty] = {}
        if not self.terms:
            return charged
        seen = replace(step, z=step.z.detach(), z_sent=Sent(step.z_sent.detach()), logits=step.logits.detach())
        for term in self.terms:
            term.regularizer.fit(seen)
            if term.weight(step.progress) > 0:
                charged[term.name] = term.regularizer(step)
        return charged

    def _backward(self, task: Tensor, penalties: Mapping[str, Penalty], progress: Progress) -> None:
        total, apart = task, {}
        for term in self.terms:
            if term.name in penalties:
                charge = term.weight(progress) * penalties[term.name].loss
                if term.is_apart:
                    apart[term.name] = self._own_gradient(term, charge)
                else:
                    total = total + charge
        self.place.backward(total)
        for gradients in apart.values():
            for parameter, gradient in zip(self.encoder, gradients, strict=True):
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def _own_gradient(self, term: Term, charge: Tensor) -> list[Tensor]:
        found = torch.autograd.grad(charge, self.encoder, retain_graph=True, allow_unused=True)
        own = [torch.zeros_like(p) if g is None else g for p, g in zip(self.encoder, found, strict=True)]
        if self.place.n_ranks > 1:
            means = torch.split(self.place.mean(torch.cat([g.flatten() for g in own])), [g.numel() for g in own])
            own = [mean.reshape(g.shape) for mean, g in zip(means, own, strict=True)]
        if term.clip_norm is not None:
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in own]))
            shrink = (term.clip_norm / norm.clamp_min(1e-12)).clamp_max(1.0)
            own = [g * shrink for g in own]
        if term.gradient_decay > 0:
            before = self.momenta.get(term.name, [torch.zeros_like(g) for g in own])
            own = [term.gradient_decay * b + (1 - term.gradient_decay) * g for b, g in zip(before, own, strict=True)]
            self.momenta[term.name] = own
        return own

    @staticmethod
    def _shown(penalty: Penalty) -> dict[str, Tensor]:
        return {"penalty": penalty.loss.detach(), **penalty.gauges}
