"""Order in a chain: what is sent, and when a guarantee may be claimed."""

import math

import pytest
import torch

from splitveil import dp
from splitveil.check import UsageError
from splitveil.mechanisms import Chain, Clip, Dropout, Gaussian, Identity, Laplace, Mechanism, Quantize, TopK
from splitveil.randomness import SeededSource

GAUSSIAN = dp.Gaussian(sensitivity=6.0, std=2.0)
LAPLACE = dp.Laplace(sensitivity=6.0, scale=2.0)
NOTHING = dp.NonPrivate()

CLIP, CLIP1 = Clip(radius=3.0), Clip(radius=3.0, norm=1)
NORMAL, DOUBLE = Gaussian(std=2.0), Laplace(scale=2.0)
DROP, TOP, ROUND, NONE = Dropout(rate=0.5), TopK(keep=4), Quantize(levels=4), Identity()


@pytest.mark.parametrize(
    ("parts", "event"),
    [
        ([CLIP, NORMAL], GAUSSIAN),
        ([CLIP, NONE, DROP, TOP, NORMAL], GAUSSIAN),
        ([CLIP, NORMAL, ROUND, DROP, TOP, CLIP], GAUSSIAN),
        ([CLIP, NORMAL, CLIP, Gaussian(std=9.0)], GAUSSIAN),
        ([CLIP1, NORMAL], GAUSSIAN),
        ([CLIP1, DOUBLE], LAPLACE),
        ([CLIP1, CLIP, DOUBLE], LAPLACE),
        ([Clip(radius=8.0), CLIP, NORMAL], GAUSSIAN),
        ([CLIP, Clip(radius=8.0), NORMAL], GAUSSIAN),
        ([Chain([CLIP, TOP]), Chain([NORMAL])], GAUSSIAN),
        ([CLIP], NOTHING),
        ([NORMAL], NOTHING),
        ([NORMAL, CLIP], NOTHING),
        ([CLIP, DOUBLE], NOTHING),
        ([CLIP, DOUBLE, NORMAL], NOTHING),
        ([CLIP, ROUND, NORMAL], NOTHING),
        ([ROUND, TOP, DROP], NOTHING),
    ],
)
def test_a_guarantee_is_claimed_only_where_it_holds(parts: list[Mechanism], event: dp.Event) -> None:
    assert Chain(parts).event() == event


def test_rounding_between_clip_and_noise_really_can_break_the_bound() -> None:
    """Why Quantize drops it: coordinates of 0.2 become 1/3, and the norm leaves the ball."""
    z = torch.full((1, 100), 0.2)
    inside = Clip(radius=2.1).send(z, ())
    assert float(Quantize(levels=4).send(inside, ()).norm()) > 2.1


def test_parts_act_in_order_on_their_own_noise() -> None:
    first, second = Gaussian(std=1.0), Laplace(scale=0.5)
    chain = Chain([first, Clip(radius=1.0), second])
    z = torch.randn(4, 6)
    noise = chain.draw(z.shape, SeededSource(0), device=z.device)
    by_hand = second.send(Clip(radius=1.0).send(first.send(z, noise[:1]), ()), noise[1:])
    assert torch.equal(chain.send(z, noise), by_hand)


def test_noise_adds_in_quadrature() -> None:
    assert Chain([Gaussian(std=3.0), TopK(keep=3), Gaussian(std=4.0)]).noise_std == 5.0
    assert Chain([Laplace(scale=1.0), Identity()]).noise_std == math.sqrt(2)


def test_an_empty_chain_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one mechanism"):
        Chain([])
