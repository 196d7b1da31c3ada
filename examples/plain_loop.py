"""A surrogate in a training loop of your own: nothing of our trainer is used.

Features of two classes are pulled together within each class, while a head still tells the classes apart. What is
printed at the end is held out: an upper bound on I(x; z_sent | y), from images that trained nothing.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from splitveil.mixtures import Mixture, leak_nats
from splitveil.regularizers import entropy
from splitveil.regularizers.base import Progress, Step

STD, CLASSES, EPOCHS, STEPS = 0.1, 2, 5, 20


def main(weight: float = 3.0) -> tuple[float, float]:
    """Train; return at most how much is leaked beside the class (nats a dimension) and the accuracy, both held out."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid())
    head = nn.Linear(16, CLASSES)
    sgd = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=0.02)
    surrogate = entropy.plain()  # or kmeans(), slots(), …: the lines below stay the same
    for epoch in range(EPOCHS):
        for i in range(STEPS):
            x, y = images(128)
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
    return held_out(encoder, head)


def images(n: int) -> tuple[Tensor, Tensor]:
    """Noise, brighter in the second class."""
    y = torch.randint(CLASSES, (n,))
    return (torch.rand(n, 1, 8, 8) + 0.5 * y.view(-1, 1, 1, 1)) / 1.5, y


@torch.no_grad()
def held_out(encoder: nn.Module, head: nn.Module, n: int = 2000) -> tuple[float, float]:
    """L of fresh images under a Gaussian a class that other fresh images fitted, with 1.96 standard errors on top."""
    (x, y), (x_new, y_new) = images(n), images(n)
    clouds = [encoder(x[y == c]) for c in range(CLASSES)]
    mean, var = (torch.stack(m).unsqueeze(1) for m in ([z.mean(0) for z in clouds], [z.var(0) for z in clouds]))
    z, noise = encoder(x_new), torch.randn(n, mean.shape[-1])
    nats = leak_nats(z, y_new, Mixture(torch.zeros(CLASSES, 1), mean, var), noise, noise_var=STD**2) / z.shape[1]
    accuracy = (head(z + STD * noise).argmax(1) == y_new).float().mean()
    return float(nats.mean() + 1.96 * nats.std() / n**0.5), float(accuracy)


if __name__ == "__main__":
    for weight in (0.0, 3.0):
        leak, accuracy = main(weight)
        print(f"weight {weight}: I(x; z_sent | y) ≤ {leak:.3f} nats a dimension, accuracy {accuracy:.2f} (held out)")
