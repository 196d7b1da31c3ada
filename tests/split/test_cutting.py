"""cut(): the halves are the model, bit for bit."""

import copy

import pytest
import torch
from torch import nn

from splitveil.check import UsageError
from splitveil.split import Bottleneck, Normalize, Returning, cut, names_to_cut
from worlds.networks import IMAGES, Asking, ResNet, Tokens, Written, nested, seeded, through

CUTS = [
    *[(nested, name) for name in ("0.0.0", "0.0", "0.1", "0.2", "0.3.1", "0", "1", "2")],
    *[(Written, name) for name in ("features.0.0", "features.0", "features.1", "features.2.2", "features", "dropped")],
    *[(ResNet, name) for name in ("stem.0", "stem", "stages.0", "stages")],
    *[(Tokens, name) for name in ("embed", "blocks.0", "blocks.1", "blocks.2")],
    (lambda: nn.Sequential(ResNet(), nn.Linear(10, 10)), "0.stages.0"),
    (lambda: nn.Sequential(ResNet(), nn.Linear(10, 10)), "0.fc"),
    *[(lambda: Returning(Asking(), "logits"), name) for name in ("model.embed.0", "model.embed", "model.layers.0")],
]

every_cut = pytest.mark.parametrize(("build", "after"), CUTS, ids=lambda v: v if isinstance(v, str) else "")


@every_cut
@pytest.mark.parametrize("traced_in_training", [True, False])
def test_the_halves_equal_the_model_bit_for_bit_in_both_modes(build, after: str, traced_in_training: bool) -> None:
    model = seeded(build)
    whole = copy.deepcopy(model)
    split = cut(model.train(traced_in_training), after=after, example=IMAGES)
    for mode in (False, True, True, False):  # training steps in between move the batch statistics
        split.train(mode)
        whole.train(mode)
        torch.manual_seed(5)
        expected = whole(IMAGES.clone())
        torch.manual_seed(5)
        assert torch.equal(through(split, IMAGES.clone()), expected)


@every_cut
def test_weights_are_the_models_own_objects_under_their_own_names(build, after: str) -> None:
    model = seeded(build)
    split = cut(model, after=after)
    halves = {**dict(split.client.encoder.body.named_parameters()), **dict(split.server.head.body.named_parameters())}
    assert {name: id(p) for name, p in halves.items()} == {name: id(p) for name, p in model.named_parameters()}
    assert len(split.encoder_parameters) + len(split.head_parameters) == len(halves)
    state = {**split.client.encoder.body.state_dict(), **split.server.head.body.state_dict()}
    constants = {name for name in state if name.startswith("_tensor_constant")}
    assert set(state) - constants == set(model.state_dict())
    assert all(state[name].data_ptr() == value.data_ptr() for name, value in model.state_dict().items())


@every_cut
def test_the_model_is_left_as_it_was(build, after: str) -> None:
    model = seeded(build)
    model.train()
    next(iter(model.children())).eval()
    names, modes = set(vars(model)), [module.training for module in model.modules()]
    state = copy.deepcopy(model.state_dict())
    cut(model, after=after, bottleneck=Bottleneck(2), example=IMAGES)
    assert set(vars(model)) == names
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("build", [nested, Written, ResNet, Tokens])
def test_every_name_that_is_listed_can_be_cut_and_no_other(build) -> None:
    model = seeded(build).eval()
    listed = names_to_cut(model, IMAGES)
    refused = [name for name, _ in model.named_modules() if name not in listed]
    assert listed
    for name in listed:
        assert torch.equal(through(cut(model, after=name, example=IMAGES), IMAGES.clone()), model(IMAGES.clone()))
    for name in refused[:: max(1, len(refused) // 5)]:  # some of them: each refusal lists all names anew
        with pytest.raises(UsageError, match="cannot cut"):
            cut(model, after=name, example=IMAGES)


def test_listed_names_are_in_order_and_leave_out_the_inside_of_a_skip() -> None:
    inside = ["stages.0.conv1", "stages.0.conv1.0", "stages.0.conv2"]
    names = names_to_cut(ResNet())
    assert names == ["stem", "stem.0", "stem.1", "stem.2", "stages", "stages.0", "stages.1"]
    assert not set(inside) & set(names)


def test_a_copy_of_the_split_is_independent() -> None:
    split = cut(seeded(Written), after="features.1")
    twin = copy.deepcopy(split)
    with torch.no_grad():
        twin.client.encoder.get_parameter("body.features.0.0.weight").zero_()
    assert split.client.encoder.get_parameter("body.features.0.0.weight").any()
    torch.testing.assert_close(
        twin.eval().server.head(torch.ones(2, 6, 4, 4)), split.eval().server.head(torch.ones(2, 6, 4, 4))
    )


def test_gradients_of_the_halves_are_the_models() -> None:
    model = seeded(Tokens).eval()
    whole = copy.deepcopy(model)
    through(cut(model, after="blocks.1"), IMAGES).square().sum().backward()
    whole(IMAGES).square().sum().backward()
    for ours, theirs in zip(model.parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.parametrize(("build", "after", "shape"), [(ResNet, "stem", (2, 8, 8)), (Tokens, "blocks.0", (4, 2))])
def test_a_bottleneck_narrows_what_is_sent_and_nothing_else(build, after: str, shape: tuple[int, ...]) -> None:
    split = cut(seeded(build), after=after, bottleneck=Bottleneck(2), example=IMAGES)
    z = split.client.encode(IMAGES)
    assert z.shape == (4, *shape)
    assert ((z > 0) & (z < 1)).all()
    assert split.server(z).shape == (4, 10)


def test_normalize_is_the_encoders_first_layer() -> None:
    split = cut(seeded(ResNet), after="stem", normalize=Normalize(mean=[0.5] * 3, std=[0.2] * 3), example=IMAGES).eval()
    plain = cut(seeded(ResNet), after="stem").eval()
    assert torch.equal(split.client.encode(IMAGES), plain.client.encode((IMAGES - 0.5) / 0.2))
