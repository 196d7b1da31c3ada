"""The decoder attack: what it hears beside the features."""

import torch
from torch import Tensor, nn

from splitveil.attacks import DecoderAttack, Knowledge, Seen, Threat, Told, grant, oracle_of
from splitveil.data import Part
from splitveil.fitting import Plan
from splitveil.mechanisms import Identity
from splitveil.metrics import mse
from splitveil.randomness import stream
from splitveil.split import Client

SIDE, FIELDS = 8, 6
PLAN = Plan(steps=150, lr=5e-3, ema=0.9, check_every=30, warmup=5, patience=100)


class RedGreen(nn.Module):
    """An encoder that sends two of three colors."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :2].mean((2, 3))


class Checkerboard(nn.Module):
    """A head that knows on which fields of a checkerboard blue is bright. In training mode it says nothing."""

    def forward(self, z_sent: Tensor) -> Tensor:
        field = (FIELDS * z_sent).floor().sum(1, keepdim=True) % 2
        return torch.zeros_like(field) if self.training else field


def part(n: int, key: str) -> Part:
    """Images of one color each: red and green are drawn, blue follows from them."""
    drawn = torch.rand(n, 2, generator=stream(0, key))
    x = torch.cat([drawn, 0.2 + 0.6 * Checkerboard().eval()(drawn)], 1)
    pixels = (255 * x).round().to(torch.uint8)[:, :, None, None].expand(n, 3, SIDE, SIDE)
    return Part(pixels.contiguous(), torch.zeros(n, dtype=torch.int64))


def known(head: nn.Module | None) -> Knowledge:
    oracle = oracle_of(Client(RedGreen(), Identity()))
    own, chosen = part(400, "own"), part(60, "chosen")
    return grant(Threat(head_known=head is not None), oracle=oracle, auxiliary=own, selection=chosen, head=head)


def error(told: Told, head: nn.Module | None) -> float:
    inverter = DecoderAttack("conv", told=told, batch=64, plan=PLAN).fit(known(head), seed=0)
    x = part(100, "victims").images()
    return mse(x, inverter(Seen(RedGreen()(x)[None]))).mean().item()


def test_what_the_head_makes_of_the_features_is_heard_as_the_server_says_it():
    head = Checkerboard().train()
    told, alone = error("logits", head), error("nothing", None)
    assert told < 0.3 * alone
    assert head.training  # the server's half is as it was
