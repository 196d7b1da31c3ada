"""Where a model cannot be cut, one line says why and where it can."""

import pytest
import torch
from torch import Tensor, nn

from splitveil.check import UsageError
from splitveil.split import Bottleneck, cut
from worlds.networks import IMAGES, Asking, ResNet, Tokens, nested


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
        (Asking, "embed", "output is a Answer, not a tensor of class scores; Returning(model, field) picks one"),
        (lambda: nn.Sequential(nn.ReLU(), nn.Conv2d(3, 4, 3)), "0", "a tensor of shape (4, 4, 6, 6), not a tensor of"),
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
