"""The cheap suite on the embedded images: within its minute, and worth it."""

import time

import pytest
import torch

from splitveil.data import fashion
from splitveil.evaluation import evaluate
from splitveil.mechanisms import Gaussian
from splitveil.networks import small_cnn
from splitveil.split import Bottleneck, cut

CORES, SECONDS = 2, 60.0


@pytest.mark.slow
def test_cheap_fits_a_minute_on_two_cores():
    torch.manual_seed(0)
    data = fashion()
    split = cut(
        small_cnn(n_classes=10, image_shape=data.image_shape),
        after=small_cnn.cut,
        bottleneck=Bottleneck(channels=8, activation="sigmoid"),
        mechanism=Gaussian(std=0.05),
        example=torch.zeros(2, *data.image_shape),
    )
    began = time.process_time()  # of one thread: other work on the machine must not fail this test
    result = evaluate(split.client, "cheap", data)
    assert time.process_time() - began < CORES * SECONDS
    assert {attack.attack for attack in result.attacks} == {"ridge", "decoder-conv", "ridge-mean16"}
    assert result.best.leak.low > 0.2
    assert result.n_victims == 1000
