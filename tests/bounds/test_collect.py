"""All bounds of a client: which apply, that they repeat, and that nothing is left changed."""

from dataclasses import replace

import pytest
import torch

from splitveil.bounds import Kind, bounds_of, missing, parts_of
from splitveil.data import fashion
from splitveil.mechanisms import Chain, Clip, Gaussian, Identity, Laplace, Quantize
from splitveil.networks import small_cnn
from splitveil.split import Bottleneck, cut
from worlds.small import small_images, small_split

DATA = small_images(n_other=64)  # pairs enough


def test_a_noisy_client_has_bits_two_points_and_van_trees_but_no_local_dp():
    client = small_split(mechanism=Gaussian(std=0.1)).client
    found = bounds_of(client, DATA)
    assert {bound.name.split(",")[0] for bound in found} == {"information", "two points", "van Trees"}
    assert [line.split(":")[0] for line in missing(client)] == ["local DP"]


@pytest.mark.parametrize(("n", "n_classes"), [(59, 1), (60, 1), (63, 3), (64, 3)])
def test_too_few_pairs_bound_nothing_and_are_told_of(n, n_classes):
    client = small_split(mechanism=Gaussian(std=0.1)).client
    parts = replace(parts_of(small_images(n_other=n)), n_classes=n_classes)
    is_enough = n_classes * (n // n_classes // 2) + (n % n_classes) * (n // n_classes % 2) >= 30
    found = [bound for bound in bounds_of(client, parts) if bound.name == "two points"]
    told = [line for line in missing(client, parts) if line.startswith("two points: needs 30 pairs of images of one")]
    assert (len(found), len(told)) == ((1, 0) if is_enough else (0, 1))


def test_behind_a_clip_there_is_local_dp_too():
    client = small_split(mechanism=Chain([Clip(radius=1.0), Gaussian(std=2.0)])).client
    found = bounds_of(client, DATA, releases=(1, 4))
    tell = [bound for bound in found if bound.name == "local DP" and "telling" in bound.quantity]
    assert [bound.releases for bound in tell] == [1, 4]
    assert tell[0].value < tell[1].value < 1
    assert missing(client) == ()
    assert {bound.releases for bound in found} == {1, 4}
    assert all(bound.holds_if for bound in found)


def test_an_encoder_that_draws_noise_itself_has_local_dp_alone_and_says_why():
    data = small_images()
    split = small_split(mechanism=Chain([Clip(radius=1.0), Gaussian(std=1.0)]))
    sure = {bound.name for bound in bounds_of(split.client, data)}
    split.client.encoder.register_forward_hook(lambda module, x, z: torch.nn.functional.dropout(z, 0.1))
    found = {bound.name for bound in bounds_of(split.client, data)}
    assert found < sure
    assert all(name.startswith("local DP") for name in found)
    assert any("draws noise of its own" in reason for reason in missing(split.client, data))


def test_a_silent_client_has_none_and_says_why():
    client = small_split(mechanism=Identity()).client
    assert bounds_of(client, DATA) == ()
    assert any("need gaussian noise" in line for line in missing(client))


def test_laplace_behind_an_l1_clip_has_local_dp_alone():
    client = small_split(mechanism=Chain([Clip(radius=1.0, norm=1), Laplace(scale=2.0)])).client
    assert {bound.name for bound in bounds_of(client, DATA)} == {"local DP"}


def test_rounded_features_have_no_van_trees():
    client = small_split(mechanism=Chain([Quantize(levels=4), Gaussian(std=0.1)])).client
    assert not any("van Trees" in bound.name for bound in bounds_of(client, DATA))
    assert any("without jumps" in line for line in missing(client))


def test_the_same_seed_gives_the_same_bounds_and_the_client_is_left_as_it_was():
    client = small_split().client.train()
    before = {name: value.clone() for name, value in client.state_dict().items()}
    state = torch.random.get_rng_state()
    first = bounds_of(client, DATA)
    torch.manual_seed(5)
    assert bounds_of(client, DATA) == first
    assert bounds_of(client, DATA, seed=1) != first
    torch.random.set_rng_state(state)
    assert client.training
    assert all(torch.equal(value, before[name]) for name, value in client.state_dict().items())


def test_sets_too_small_for_a_bound_go_without_it():
    few = small_images(n_train=6, n_other=3)  # two members a class to fit to, one to read
    found = bounds_of(small_split(mechanism=Gaussian(std=0.1)).client, few)
    assert not any(bound.name == "two points" for bound in found)
    assert all(torch.tensor(bound.value).isfinite() for bound in found)
    parts = parts_of(few)
    one = replace(parts, choose=parts.choose.take(1))
    assert not any("van Trees" in bound.name for bound in bounds_of(small_split().client, one))


def test_roles_are_the_right_ones():
    parts = parts_of(DATA)
    assert (parts.fit, parts.choose, parts.read) == (DATA.train, DATA.auxiliary, DATA.victims)
    strangers = parts_of(type(DATA)("x", 3, DATA.train, DATA.auxiliary.unlabeled(), DATA.selection, DATA.victims))
    assert strangers.choose is DATA.selection


@pytest.mark.slow
def test_the_embedded_images_take_seconds():
    data = fashion()
    split = cut(
        small_cnn(n_classes=10, image_shape=data.image_shape),
        after=small_cnn.cut,
        bottleneck=Bottleneck(channels=8),
        mechanism=Gaussian(std=0.1),
        example=torch.zeros(2, 1, 28, 28),
    )
    found = bounds_of(split.client, data)
    assert {bound.kind for bound in found} == {Kind.SAMPLED, Kind.ASYMPTOTIC}
