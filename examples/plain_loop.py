"""A surrogate in a training loop of your own: nothing of our trainer is used.

Features of two classes are pulled together within each class, while a head still tells the classes apart.
"""

import torch
from torch import nn
from torch.nn import functional as F

from splitveil.regularizers import entropy
from splitveil.regularizers.base import Progress, Step

STD, CLASSES, EPOCHS, STEPS = 0.1, 2, 5, 20


def main(weight: float = 3.0) -> tuple[float, float]:
    """Train; return what a class leaks at most at the end (nats a dimension, in sample) and the accuracy."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid())
    head = nn.Linear(16, CLASSES)
    sgd = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=0.02)
    surrogate = entropy.plain()  # or kmeans(), slots(), …: the lines below stay the same
    for epoch in range(EPOCHS):
        for i in range(STEPS):
            y = torch.randint(CLASSES, (128,))
            x = (torch.rand(128, 1, 8, 8) + 0.5 * y.view(-1, 1, 1, 1)) / 1.5
            progress = Progress(0, epoch, epoch * STEPS + i, EPOCHS, 0.01, 0.01, None)
            z = encoder(x)  # ── these ten lines are all there is to it
            z_sent = z + STD * torch.randn_like(z)
            logits = head(z_sent)
            step = Step(x, z, z_sent, y, logits, STD, CLASSES, progress)
            surrogate.fit(step)  # every step, from the first
            penalty = surrogate(step)
            loss = F.cross_entropy(logits, y) + weight * penalty.loss
            sgd.zero_grad()
            loss.backward()
            sgd.step()
        surrogate.end_epoch(progress)  # those that remember refit here
    return float(penalty.loss.detach()), float((logits.argmax(1) == y).float().mean())


if __name__ == "__main__":
    for weight in (0.0, 3.0):
        leak, accuracy = main(weight)
        print(f"weight {weight}: leak ≤ {leak:.3f} nats a dimension, accuracy {accuracy:.2f}")
