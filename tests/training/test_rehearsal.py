"""One step on copies: mistakes are found, and nothing moves."""

import pytest
import torch
from torch import nn

from splitveil.check import UsageError
from splitveil.mechanisms import Gaussian, Identity
from splitveil.regularizers.base import Penalty, Regularizer, Step
from splitveil.regularizers.entropy import kmeans
from splitveil.split import Split, cut
from splitveil.training import Recipe, Term, Weight, rehearse, train
from worlds.small import small_images, small_split

CPU = torch.device("cpu")


class Counting(Regularizer):
    """Counts its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(()))

    def forward(self, step: Step) -> Penalty:
        return Penalty(step.z.square().mean())

    def fit(self, step: Step) -> None:
        self.n += 1


def play(split: Split, terms: list[Term] | None = None, *, batch_size: int = 16) -> None:
    rehearse(split, small_images(), Recipe(batch_size=batch_size), terms or [], device=CPU)


def test_networks_and_penalties_stay_as_they_are() -> None:
    split, counting, fresh = small_split(), Counting(), kmeans()
    before = {name: value.clone() for name, value in split.client.state_dict().items()}
    play(split, [Term("counting", counting, Weight(1.0)), Term("kmeans", fresh, Weight(1.0))])
    assert all(torch.equal(value, before[name]) for name, value in split.client.state_dict().items())
    assert counting.n == 0
    assert fresh.state_dict() == kmeans().state_dict()


def test_a_penalty_that_needs_noise_is_refused_without_it() -> None:
    term = [Term("kmeans", kmeans(), Weight(1.0))]
    play(small_split(mechanism=Gaussian(std=0.1)), term)
    with pytest.raises(UsageError, match="noise_std must be > 0"):
        play(small_split(mechanism=Identity()), term)


def test_a_penalty_on_a_frozen_encoder_is_refused() -> None:
    terms = [Term("counting", Counting(), Weight(1.0))]
    rehearse(small_split(), small_images(), Recipe(batch_size=16, freeze="head"), terms, device=CPU)
    idle, said = Recipe(batch_size=16, freeze="encoder"), "counting charges the encoder, which freeze=encoder holds"
    with pytest.raises(UsageError, match=said):
        rehearse(small_split(), small_images(), idle, terms, device=CPU)
    with pytest.raises(UsageError, match=said):
        train(small_split(), small_images(), idle, regularizers=terms, device="cpu")


def test_another_number_of_classes_is_told_with_both_numbers() -> None:
    with pytest.raises(UsageError, match=r"each of 3 classes, shape \(16, 3\).* gives \(16, 5\)"):
        play(small_split(n_classes=5))


def test_what_the_network_raises_becomes_one_line() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    with pytest.raises(UsageError, match=r"fails on a batch of 1 images \(1, 8, 8\): Expected more than 1 value"):
        play(cut(model, after="1"), batch_size=1)
