"""How often the split model is right, through its mechanism: what a user of the deployed pair would see."""

import torch

from splitveil.data import Part, sweep
from splitveil.randomness import SeededSource
from splitveil.split import Split

BATCH = 500  # images at a time: bounds memory, changes nothing


@torch.no_grad()
def accuracy(split: Split, part: Part, *, seed: int) -> float:
    """Share of images classified rightly. Networks are put in eval mode; the part decides the device.

    Guarantees: the same seed gives the same noise, so two calls agree.
    """
    split.client.eval()
    split.server.eval()
    source = SeededSource(seed, "accuracy")
    parameter = next(iter(split.server.parameters()), torch.empty(0))
    correct = torch.zeros((), dtype=torch.long, device=part.labels.device)
    for batch in sweep(part, size=BATCH):
        z_sent = split.client(batch.x.to(parameter.dtype), source=source)
        correct += (split.server(z_sent).argmax(1) == batch.y).sum()
    return correct.item() / len(part)
