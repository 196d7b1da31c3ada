"""One backward of the sum against the sources' two passes, and a penalty's own gradient taken apart."""

import torch
from torch import Tensor
from torch.nn import functional as F

from splitveil.data import batches
from splitveil.randomness import SeededSource
from splitveil.regularizers.base import Penalty, Progress, Regularizer, Step
from splitveil.split import Split
from splitveil.training import Recipe, Term, Weight
from splitveil.training.device import open_place
from splitveil.training.step import Joint, Stepper
from worlds.small import small_images, small_split

PROGRESS = Progress(seed=0, epoch=0, step=0, n_epochs=1, lr=0.0, base_lr=0.1, selection_accuracy=None)
RECIPE = Recipe(epochs=1, batch_size=16, precision="float64")


class Spread(Regularizer):
    def forward(self, step: Step) -> Penalty:
        return Penalty(step.z.flatten(1).var(0).sum())


def gradients(split: Split, terms: list[Term]) -> dict[str, Tensor]:
    """Gradients our step leaves, with a learning rate of zero so that nothing moves."""
    place = open_place("cpu", "float64")
    joint = Joint(split).double()
    model, optimizer = place.set_up(joint, torch.optim.SGD(joint.parameters(), lr=0.0))
    batch = next(iter(batches(small_images().train, size=16, seed=0, epoch=0)))
    Stepper(place, model, optimizer, RECIPE, terms, 3)(batch, PROGRESS)
    return {name: p.grad.clone() for name, p in joint.named_parameters() if p.grad is not None}


def stash_zero_blend(split: Split, weight: float) -> dict[str, Tensor]:
    """The sources' procedure: backward the penalty, stash, zero, backward the task, blend into the encoder."""
    joint = Joint(split).double()
    batch = next(iter(batches(small_images().train, size=16, seed=0, epoch=0)))
    z, _, logits = joint(batch.x.double(), SeededSource(0, "noise", 0, rows=batch.rows))
    z.flatten(1).var(0).sum().backward(retain_graph=True)
    stash = {name: p.grad.clone() for name, p in joint.named_parameters() if p.grad is not None}
    joint.zero_grad()
    F.cross_entropy(logits, batch.y).backward()
    for name, p in joint.named_parameters():
        if name in stash:
            p.grad += weight * stash[name]
    return {name: p.grad.clone() for name, p in joint.named_parameters() if p.grad is not None}


def test_one_backward_of_the_sum_equals_stash_zero_blend() -> None:
    ours = gradients(small_split(), [Term("spread", Spread(), Weight(0.7))])
    theirs = stash_zero_blend(small_split(), 0.7)
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-12)


def test_taking_the_gradient_apart_without_clipping_changes_nothing() -> None:
    together = gradients(small_split(), [Term("spread", Spread(), Weight(0.7))])
    apart = gradients(small_split(), [Term("spread", Spread(), Weight(0.7), clip_norm=1e9)])
    for name in together:
        torch.testing.assert_close(together[name], apart[name], rtol=0, atol=1e-12)


def test_a_clipped_penalty_moves_the_encoder_by_at_most_its_norm() -> None:
    task = gradients(small_split(), [])
    clipped = gradients(small_split(), [Term("spread", Spread(), Weight(1e3), clip_norm=0.01)])
    gap = torch.cat([(clipped[n] - task[n]).flatten() for n in task])
    assert abs(gap.norm().item() - 0.01) < 1e-9
    assert all(torch.equal(clipped[n], task[n]) for n in task if n.startswith("server"))


def test_first_smoothed_gradient_is_scaled_by_one_minus_decay() -> None:
    task = gradients(small_split(), [])
    whole = gradients(small_split(), [Term("spread", Spread(), Weight(1.0))])
    smooth = gradients(small_split(), [Term("spread", Spread(), Weight(1.0), gradient_decay=0.75)])
    for name in task:
        torch.testing.assert_close(smooth[name] - task[name], 0.25 * (whole[name] - task[name]), rtol=0, atol=1e-12)
