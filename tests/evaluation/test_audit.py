"""An audit takes whatever a user has: a client, a module or a function; an image set, a tensor or an array."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import splitveil
from splitveil.attacks import DecoderAttack, Recognition, Ridge, Threat
from splitveil.check import UsageError
from splitveil.evaluation import Suite, Trial
from splitveil.fitting import Plan
from worlds.linear_gaussian import world
from worlds.small import small_images, small_split

IMAGES = world(side=12).part(200, 0, "user").images()
RIDGE = Suite("ridge", (Trial(Ridge(), Threat()), Trial(Ridge(), Threat(insider=True))))


def encoder() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU())


def test_module_function_and_array_give_the_same_leak():
    module = encoder().eval()
    by_module = splitveil.audit(module, IMAGES, suite=RIDGE)
    by_function = splitveil.audit(lambda x: module(x).detach().numpy(), IMAGES.numpy(), suite=RIDGE)
    assert by_module.best.leak.mean > 0.4
    assert by_function.best.mse == by_module.best.mse
    assert [attack.knowledge for attack in by_module.attacks] == ["white-box outsider"]
    assert [attack.knowledge for attack in by_function.attacks] == ["black-box outsider"]


def test_an_image_set_brings_its_own_roles():
    data = small_images(n_train=64, n_other=64)
    found = splitveil.audit(small_split().client, data, suite=RIDGE)
    assert found.data == "small"
    assert found.n_victims == 64
    assert {attack.knowledge for attack in found.attacks} == {"white-box outsider", "white-box insider"}
    assert {bound.name.split(",")[0] for bound in found.bounds} == {"information", "two points", "van Trees"}


def test_the_bounds_of_a_user_s_own_images_need_no_labels():
    found = splitveil.audit(world(side=12).client(), IMAGES, suite=RIDGE)
    assert "bits" in {bound.unit for bound in found.bounds}
    assert splitveil.audit(encoder(), IMAGES, suite=RIDGE).bounds == ()


def test_labels_make_the_label_conditioned_attack_possible():
    attack = DecoderAttack("conv", told="label", batch=16, plan=Plan(steps=3))
    suite = Suite("label", (Trial(Ridge(), Threat()), Trial(attack, Threat(label_known=True))))
    labels = np.arange(200) % 3
    assert len(splitveil.audit(encoder(), IMAGES, suite=suite).attacks) == 1
    assert len(splitveil.audit(encoder(), IMAGES, suite=suite, labels=labels).attacks) == 2


def test_other_labels_of_the_same_images_are_another_evaluation_with_other_judges(tmp_path):
    judged = replace(RIDGE, recognition=Recognition(batch=8, plan=Plan(steps=2, check_every=1)))
    large = IMAGES[:40].repeat_interleave(3, 2).repeat_interleave(3, 3)
    for labels, n_judges in ((np.arange(40) % 2, 1), (np.arange(40) % 2, 1), (np.arange(40) // 20, 2)):
        updates = []
        splitveil.audit(encoder(), large, suite=judged, labels=labels, out=tmp_path, progress=updates.append)
        assert len(list(tmp_path.glob("judge-*.safetensors"))) == n_judges
    assert not updates[-1].was_stored


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES[0], None, "of shape"),
        ((IMAGES * 255).to(torch.uint8), None, "floats in"),
        (IMAGES * 255, None, "divide bytes by 255"),
        (IMAGES, np.zeros(3, np.int64), "labels must be 200"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_one_line(images, labels, message):
    with pytest.raises(UsageError, match=message):
        splitveil.audit(encoder(), images, suite=RIDGE, labels=labels)


def test_something_that_is_no_client_is_refused():
    with pytest.raises(UsageError, match="a Client, a module or a function"):
        splitveil.audit("model.pt", IMAGES)
