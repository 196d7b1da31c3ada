"""cut(): the halves are the model, bit for bit, or one line says why not."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from splitveil.check import UsageError
from splitveil.mechanisms import Gaussian
from splitveil.randomness import SeededSource
from splitveil.split import Bottleneck, Normalize, Split, cut, names_to_cut

IMAGES = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def conv(n_in: int, n_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(n_in, n_out, 3, padding=1), nn.BatchNorm2d(n_out), nn.ReLU(inplace=True))


class Written(nn.Module):
    """A forward in plain Python: functional dropout that follows the mode, a view by the batch size."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(conv(3, 6), nn.MaxPool2d(2), conv(6, 5))
        self.dropped = nn.Dropout(0.3)
        self.classifier = nn.Linear(5 * 16, 10)

    def forward(self, x: Tensor, scale: float | None = None) -> Tensor:
        n = x.shape[0]
        x = self.features(x if scale is None else x * scale)
        x = F.dropout(self.dropped(x), 0.4, training=self.training)
        return self.classifier(x.view(n, -1))


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv(width, width), conv(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(self.conv1(x)) + x


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 6)
        self.stages = nn.Sequential(Residual(6), Residual(6))
        self.fc = nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.stages(self.stem(x)).mean((2, 3)))


class Tokens(nn.Module):
    """Parameters, buffers and constants read in forward, blocks in a list, a batch size used late."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 12, 4, stride=4)
        self.place = nn.Parameter(torch.randn(1, 4, 12))
        self.register_buffer("shift", torch.randn(12))
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(12, 2, 24, batch_first=True) for _ in range(3)])
        self.last = nn.Parameter(torch.randn(1, 1, 12))
        self.head = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x).flatten(2).transpose(1, 2) + self.place + (self.shift + 1)
        for block in self.blocks:
            h = block(h)
        h = torch.cat([h, self.last.expand(x.size(0), -1, -1) * torch.arange(12)], dim=1)
        return self.head(h.mean(1))


class Branching(nn.Module):
    """Control flow that depends on data: beyond tracing, but only inside a submodule."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x


def nested() -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(conv(3, 6), nn.MaxPool2d(2), Branching(), conv(6, 4)),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(64, 10),
    )


CUTS = [
    *[(nested, name) for name in ("0.0.0", "0.0", "0.1", "0.2", "0.3.1", "0", "1", "2")],
    *[(Written, name) for name in ("features.0.0", "features.0", "features.1", "features.2.2", "features", "dropped")],
    *[(ResNet, name) for name in ("stem.0", "stem", "stages.0", "stages")],
    *[(Tokens, name) for name in ("embed", "blocks.0", "blocks.1", "blocks.2")],
    (lambda: nn.Sequential(ResNet(), nn.Linear(10, 10)), "0.stages.0"),
    (lambda: nn.Sequential(ResNet(), nn.Linear(10, 10)), "0.fc"),
]

every_cut = pytest.mark.parametrize(("build", "after"), CUTS, ids=lambda v: v if isinstance(v, str) else "")


def seeded(build) -> nn.Module:
    torch.manual_seed(0)
    return build()


def through(split: Split, x: Tensor) -> Tensor:
    return split.server.head(split.client.encoder(x))


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
    for name, _ in model.named_modules():
        if name in listed:
            assert torch.equal(through(cut(model, after=name, example=IMAGES), IMAGES.clone()), model(IMAGES.clone()))
        else:
            with pytest.raises(UsageError, match="cannot cut"):
                cut(model, after=name, example=IMAGES)
    assert listed


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


def test_an_in_place_layer_in_the_head_does_not_rewrite_what_was_sent() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 10))
    split = cut(model, after="0")
    sent = split.client(IMAGES, source=SeededSource(0))
    kept = sent.clone()
    split.server(sent)
    assert (kept < 0).any()
    assert torch.equal(sent, kept)


def test_the_client_sends_what_its_mechanism_makes_of_its_features() -> None:
    split = cut(seeded(nested), after="0", mechanism=Gaussian(std=0.5)).eval()
    sent = split.client(IMAGES, source=SeededSource(3))
    assert torch.equal(sent, Gaussian(std=0.5)(split.client.encode(IMAGES), source=SeededSource(3)))
    assert torch.equal(split(IMAGES, source=SeededSource(3)), split.server(sent))


def test_gradients_of_the_halves_are_the_models() -> None:
    model = seeded(Tokens).eval()
    whole = copy.deepcopy(model)
    through(cut(model, after="blocks.1"), IMAGES).square().sum().backward()
    whole(IMAGES).square().sum().backward()
    for ours, theirs in zip(model.parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


class Twice(ResNet):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.stages[0](self.stages[0](self.stem(x))).mean((2, 3)))


class Around(ResNet):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.stages(self.stem(x)).mean((2, 3)) + x.mean())


class ByMode(ResNet):
    def forward(self, x: Tensor) -> Tensor:
        h = self.stages(self.stem(x))
        return self.fc((h + 1 if self.training else h).mean((2, 3)))


class ByData(ResNet):
    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        return self.fc((self.stages(h) if h.sum() > 0 else h).mean((2, 3)))


class Several(ResNet):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": super().forward(x)}


class Random(ResNet):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.randn(3, 1, 1))


class Unused(ResNet):
    def forward(self, x: Tensor) -> Tensor:
        self.stages(x.new_zeros(1, 6, 8, 8))
        return self.fc(self.stem(x).mean((2, 3)))


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


class SendsPair(ResNet):
    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.pair(self.stem(x))[0].mean((2, 3)))


def tied() -> nn.Module:
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    return nn.Sequential(first, nn.ReLU(), second)


def hooked() -> nn.Module:
    model = ResNet()
    model.stages.register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    ("build", "after", "reason"),
    [
        (ResNet, "stages.2", "there is no such submodule; did you mean 'stages.1'?"),
        (ResNet, "", "there is no such submodule"),
        (ResNet, "fc", "nothing would be left for the server"),
        (nested, "3", "nothing would be left for the server"),
        (ResNet, "stages.0.conv1", "a skip connection crosses the cut: 'add' also needs 'stem'"),
        (Around, "stem", "a skip connection crosses the cut: 'add' also needs 'mean'"),
        (Twice, "stages.0", "the forward pass calls it 2 times"),
        (Twice, "stages.1", "the forward pass does not call it"),
        (Tokens, "blocks", "the forward pass does not call it"),
        (ByMode, "stem", "takes another path in training than in evaluation"),
        (ByData, "stem", "cannot be traced (symbolically traced variables cannot be used as inputs to control flow)"),
        (Several, "stem", "the model's output is a dict, not a tensor"),
        (Random, "stem", "makes a tensor that differs from call to call"),
        (Unused, "stages", "the output does not depend on it"),
        (SendsPair, "pair", "its output is a tuple, not a tensor of floats"),
        (tied, "1", "weights are used on both sides of it: 2.weight"),
        (hooked, "stages.0", "Sequential has forward hooks"),
    ],
)
def test_a_model_that_cannot_be_cut_there_says_why_in_one_line(build, after: str, reason: str) -> None:
    example = torch.rand(4, 8) if build is tied else IMAGES
    with pytest.raises(UsageError) as caught:
        cut(build(), after=after, example=example)
    message = str(caught.value)
    assert message.startswith(f"cannot cut {type(build()).__name__} after {after!r}: ")
    assert reason in message
    assert "\n" not in message
    assert "; it can be cut" in message


def test_a_refusal_lists_the_names_that_work() -> None:
    with pytest.raises(UsageError, match=r"cut after: stem, stem\.0, stem\.1, stem\.2, stages, stages\.0, stages\.1$"):
        cut(ResNet(), after="layer4")


def test_an_example_the_model_does_not_take_is_told_in_one_line() -> None:
    with pytest.raises(UsageError, match=r"^the model does not take images of shape \(1, 8, 8\): [^\n]*$"):
        cut(ResNet(), after="stem", example=torch.rand(2, 1, 8, 8))


def test_a_bottleneck_without_an_example_is_refused() -> None:
    with pytest.raises(UsageError, match="a bottleneck needs `example`"):
        cut(ResNet(), after="stem", bottleneck=Bottleneck(2))


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_features_are_float32_under_autocast(dtype: torch.dtype) -> None:
    split = cut(seeded(nested), after="0.0.0")
    with torch.autocast("cpu", dtype=dtype):
        assert split.client.encoder(IMAGES).dtype == dtype
        assert split.client.encode(IMAGES).dtype == torch.float32


def test_float64_features_keep_their_digits() -> None:
    split = cut(seeded(nested).double(), after="0")
    assert split.client.encode(IMAGES.double()).dtype == torch.float64


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's own compiler asks for it
@pytest.mark.parametrize(("build", "after"), [(Written, "features.1"), (Tokens, "blocks.1")])
def test_the_halves_compile_and_train(build, after: str) -> None:
    split = cut(seeded(build), after=after, bottleneck=Bottleneck(3), example=IMAGES).eval()
    plain = copy.deepcopy(split)
    split.client.encoder.compile(backend="aot_eager")
    split.server.head.compile(backend="aot_eager")
    source = SeededSource(0)
    torch.testing.assert_close(split(IMAGES, source=source), plain(IMAGES, source=source))
    for each in (split, plain):
        each(IMAGES, source=source).square().sum().backward()
    for ours, theirs in zip(split.encoder_parameters, plain.encoder_parameters, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_channels_last_gives_the_same_answer() -> None:
    split = cut(seeded(ResNet), after="stages.0", bottleneck=Bottleneck(3), example=IMAGES).eval()
    expected = through(split, IMAGES)
    split.client.to(memory_format=torch.channels_last)
    split.server.to(memory_format=torch.channels_last)
    torch.testing.assert_close(through(split, IMAGES.to(memory_format=torch.channels_last)), expected)
