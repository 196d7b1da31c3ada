"""Everything a run needs before its first step: both halves as one module, the optimizer, the regularizers in place.

Batch statistics are those of the whole batch: on several GPUs they are synchronized, and on several CPU processes,
where torch cannot do that, a network that has them is refused.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from splitveil.check import UsageError
from splitveil.data import Part
from splitveil.split import Split
from splitveil.training.device import Place
from splitveil.training.recipe import Recipe
from splitveil.training.step import Joint, Stepper, Term


def steps_per_epoch(part: Part, recipe: Recipe, *, n_ranks: int) -> int:
    """How many steps an epoch has; refused if there is none, or if the ranks cannot share a batch evenly."""
    steps = len(part) // recipe.batch_size
    if steps == 0:
        raise UsageError(f"batch_size {recipe.batch_size} is larger than the train role ({len(part)} images); lower it")
    if recipe.batch_size % n_ranks:
        near = max(1, round(recipe.batch_size / n_ranks)) * n_ranks
        raise UsageError(f"batch_size {recipe.batch_size} cannot be shared by {n_ranks} processes; use {near}")
    return steps


def set_up(place: Place, split: Split, recipe: Recipe, terms: Sequence[Term], n_classes: int) -> Stepper:
    """A stepper that is ready to go. The networks of `split` are moved and wrapped, not copied."""
    refuse_idle(recipe, terms)
    joint = Joint(split)
    joint.requires_grad_(True)
    if recipe.freeze != "nothing":
        (split.client if recipe.freeze == "encoder" else split.server).requires_grad_(False)
    if place.n_ranks > 1 and place.device.type == "cuda":
        nn.SyncBatchNorm.convert_sync_batchnorm(joint)  # type: ignore[no-untyped-call] # in place
    elif place.n_ranks > 1:
        refuse_statistics(split, recipe)
    if recipe.precision == "float64":
        joint.double()
    if recipe.channels_last:
        joint.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if recipe.compile:
        split.client.encoder.compile()
        split.server.head.compile()
    joint.to(place.device)  # before the optimizer takes the parameters
    model, optimizer = place.set_up(joint, _optimizer(joint, recipe))
    for term in terms:
        term.regularizer.to(place.device, next(joint.parameters()).dtype)
        term.regularizer.bind(split.client, split.server)
    return Stepper(place, model, optimizer, recipe, terms, n_classes)


def refuse_idle(recipe: Recipe, terms: Sequence[Term]) -> None:
    """Raise if penalties would charge an encoder that cannot move."""
    if terms and recipe.freeze == "encoder":
        raise UsageError(
            f"{terms[0].name} charges the encoder, which freeze=encoder holds still; leave one of the two out"
        )


def refuse_statistics(split: Split, recipe: Recipe) -> None:
    """Raise if a layer that is trained takes statistics of its batch; a frozen half keeps those it has."""
    trained = {"encoder": split.client.encoder, "head": split.server.head}
    trained.pop(recipe.freeze, None)
    for half in trained.values():
        for name, layer in half.named_modules():
            if isinstance(layer, _BatchNorm):
                raise UsageError(
                    f"{name or type(layer).__name__} takes statistics of its batch, which processes on CPUs cannot "
                    "share; use one process, GPUs, or a network without them (as vit)"
                )


def _optimizer(joint: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    trained = [p for p in joint.parameters() if p.requires_grad]
    fused = all(p.device.type == "cuda" for p in trained) or None  # one kernel a step in place of five
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(trained, lr=recipe.lr, weight_decay=recipe.weight_decay, fused=fused)
    return torch.optim.SGD(
        trained,
        lr=recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=recipe.momentum > 0,
        fused=fused,
    )
