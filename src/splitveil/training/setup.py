"""Everything a run needs before its first step: both halves as one module, the optimizer, the regularizers in place."""

from collections.abc import Sequence

import torch
from torch import nn

from splitveil.split import Split
from splitveil.training.device import Fabric
from splitveil.training.recipe import Recipe
from splitveil.training.step import Joint, Stepper, Term


def set_up(fabric: Fabric, split: Split, recipe: Recipe, terms: Sequence[Term], n_classes: int) -> Stepper:
    """A stepper that is ready to go. The networks of `split` are moved and wrapped, not copied."""
    joint = Joint(split)
    joint.requires_grad_(True)
    if recipe.freeze != "nothing":
        (split.client if recipe.freeze == "encoder" else split.server).requires_grad_(False)
    if recipe.precision == "float64":
        joint.double()
    if recipe.channels_last:
        joint.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if recipe.compile:
        split.client.encoder.compile()
        split.server.head.compile()
    model, optimizer = fabric.setup(joint, _optimizer(joint, recipe))
    for term in terms:
        term.regularizer.to(fabric.device, next(joint.parameters()).dtype)
        term.regularizer.bind(split.client, split.server)
    return Stepper(fabric, model, optimizer, recipe, terms, n_classes)


def _optimizer(joint: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    trained = [p for p in joint.parameters() if p.requires_grad]
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(trained, lr=recipe.lr, weight_decay=recipe.weight_decay)
    return torch.optim.SGD(
        trained, lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay, nesterov=recipe.momentum > 0
    )
