"""Probes: they read what is there, not what is not, and pass over images without a label."""

import pytest
import torch
from torch import nn

from splitveil.attacks import Box, Probe, Seen, Threat, grant, oracle_of
from splitveil.check import UsageError
from splitveil.data import Part
from splitveil.evaluation import Inquiry
from splitveil.fitting import Plan
from splitveil.mechanisms import Gaussian
from splitveil.randomness import SeededSource
from splitveil.split import Client
from worlds.small import row_images

DATA = row_images(n_other=300, n_classes=4)
QUICK = Plan(steps=150, lr=5e-3, warmup=5, ema=0.9, check_every=50)


class Deaf(nn.Module):
    """Sends the brightness of one corner: nothing of the class."""

    def forward(self, x):
        return x[:, 0, 2, 3:5]


def rate(encoder: nn.Module, probe: Probe, auxiliary: Part = DATA.auxiliary) -> float:
    oracle = oracle_of(Client(encoder, Gaussian(std=0.05)))
    known = grant(Threat(Box.BLACK), oracle=oracle, auxiliary=auxiliary, selection=DATA.selection, n_classes=4)
    guesser = probe.fit(known, seed=0)
    seen = Seen(oracle.release(DATA.victims.images(), source=SeededSource(1)))
    return (guesser(seen).argmax(1) == probe.truth(DATA.victims.labels)).float().mean().item()


@pytest.mark.parametrize("hidden", [None, 16])
def test_a_probe_reads_a_class_that_is_sent(hidden):
    assert rate(nn.AvgPool2d((2, 16)), Probe(hidden=hidden, plan=QUICK)) > 0.9


def test_a_probe_of_what_says_nothing_is_at_chance():
    assert 0.1 < rate(Deaf(), Probe(plan=QUICK)) < 0.4


def test_an_attribute_is_a_group_of_classes():
    probe = Probe(groups=(0, 1, 0, 1), plan=QUICK)
    assert probe.name == "attribute-probe-linear"
    assert torch.equal(probe.truth(torch.tensor([0, 1, 2, 3])), torch.tensor([0, 1, 0, 1]))
    assert rate(nn.AvgPool2d((2, 16)), probe) > 0.9


def test_images_without_a_label_are_passed_over():
    third = torch.arange(len(DATA.auxiliary)) % 3 == 0
    labels = torch.where(third, DATA.auxiliary.labels, -1)
    assert rate(nn.AvgPool2d((2, 16)), Probe(plan=QUICK), DATA.auxiliary.relabeled(labels)) > 0.9


def test_it_refuses_what_has_no_classes():
    oracle = oracle_of(nn.Flatten())
    known = grant(Threat(Box.BLACK), oracle=oracle, auxiliary=DATA.auxiliary, selection=DATA.selection)
    with pytest.raises(UsageError, match="needs paired queries of labeled images"):
        Probe().fit(known, seed=0)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"groups": (1, 1, 1, 1)}, "at least two different ones"),
        ({"groups": (0, -1, 0, 1)}, "numbers from 0"),
        ({"groups": (0, 1, 0, 1), "attribute": "label"}, "and not 'label'"),
        ({"groups": (0, 1, 0, 1), "attribute": "../up"}, "letters, digits and dashes"),
    ],
)
def test_a_wrong_attribute_is_refused(words, says):
    with pytest.raises(UsageError, match=says):
        Probe(**words)


def test_groups_of_other_classes_are_refused():
    with pytest.raises(UsageError, match="a number for each of 4 classes, got 3"):
        rate(nn.AvgPool2d((2, 16)), Probe(groups=(0, 1, 0), plan=QUICK))


def test_an_attribute_has_its_own_name_and_the_settings_of_any_other():
    animal = Probe(groups=(0, 1, 0, 1), hidden=8, attribute="animal")
    assert animal.name == "animal-probe-mlp"
    assert repr(animal) == repr(Probe(groups=(0, 1, 0, 1), hidden=8))
    assert "attribute" not in repr(Probe())  # what was stored before there were names is found again


def test_releases_that_a_probe_does_not_hear_are_refused():
    with pytest.raises(UsageError, match="hears one release of an input, got a threat with 4; grant one release"):
        Inquiry(Probe(), Threat(releases=4))
