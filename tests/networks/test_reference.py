"""Every reference classifier: sizes, names, cuts, and that it learns."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from splitveil.check import UsageError
from splitveil.networks import REFERENCES, Reference, resnet18, resnet20, small_cnn, vgg11, vit
from splitveil.split import Bottleneck, Split, cut, names_to_cut

SHAPES = {"small-cnn": [(1, 28, 28), (3, 32, 32)], "vit": [(1, 28, 28), (3, 32, 32), (3, 64, 64)]}
CASES = [(name, shape) for name in REFERENCES for shape in SHAPES.get(name, [(3, 32, 32), (3, 64, 64)])]
CUTS = [(name, after) for name, reference in REFERENCES.items() for after in reference.cuts]

every = pytest.mark.parametrize("name", REFERENCES)
every_case = pytest.mark.parametrize(("name", "shape"), CASES)
every_cut = pytest.mark.parametrize(("name", "after"), CUTS)


def made(name: str, shape: tuple[int, int, int] = (3, 32, 32), n_classes: int = 10) -> nn.Sequential:
    torch.manual_seed(0)
    return REFERENCES[name](n_classes=n_classes, image_shape=shape)


def images(shape: tuple[int, int, int] = (3, 32, 32)) -> Tensor:
    return torch.rand(2, *shape, generator=torch.Generator().manual_seed(1))


def through(split: Split, x: Tensor) -> Tensor:
    return split.server.head(split.client.encoder(x))


def n_parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "count"),
    [  # widely published sizes at 10 classes
        ("vgg11", 9_231_114),  # github.com/kuangliu/pytorch-cifar
        ("resnet18", 11_173_962),  # the same
        ("resnet20", 272_474),  # github.com/osmr/imgclsmob, projected shortcuts
        ("mobilenet-v2", 2_236_682),  # torchvision's, whose strides differ and whose weights do not
    ],
)
def test_parameters_are_as_many_as_published(name: str, count: int) -> None:
    assert n_parameters(made(name)) == count


def test_the_vgg_encoder_of_the_literature_has_85256_parameters_and_sends_8_by_8_by_8() -> None:
    split = cut(made("vgg11"), after=vgg11.cut, bottleneck=Bottleneck(vgg11.bottleneck_channels), example=images())
    assert n_parameters(split.client) == 85_256
    assert split.client.encode(images()).shape == (2, 8, 8, 8)


@pytest.mark.parametrize(
    ("reference", "shape", "sent"),
    [
        (small_cnn, (1, 28, 28), (8, 7, 7)),
        (vgg11, (3, 64, 64), (8, 16, 16)),
        (resnet20, (3, 32, 32), (8, 16, 16)),
        (resnet18, (3, 64, 64), (8, 32, 32)),
        (vit, (3, 32, 32), (64, 8)),
        (vit, (3, 64, 64), (64, 8)),
    ],
)
def test_what_is_sent_at_the_usual_cut(reference: Reference, shape: tuple, sent: tuple) -> None:
    model = reference(n_classes=5, image_shape=shape)
    bottleneck = Bottleneck(reference.bottleneck_channels)
    split = cut(model, after=reference.cut, bottleneck=bottleneck, example=images(shape)).eval()
    assert split.client.encode(images(shape)).shape == (2, *sent)


@every_case
def test_logits_have_one_score_a_class(name: str, shape: tuple[int, int, int]) -> None:
    for n_classes in (2, 7):
        assert made(name, shape, n_classes).eval()(images(shape)).shape == (2, n_classes)


@every_cut
def test_a_named_cut_is_exact_in_both_modes(name: str, after: str) -> None:
    model = made(name)
    whole = copy.deepcopy(model)
    split = cut(model, after=after)
    for mode in (True, False):
        split.train(mode)
        whole.train(mode)
        torch.manual_seed(3)
        expected = whole(images())
        torch.manual_seed(3)
        assert torch.equal(through(split, images()), expected)


@every
def test_the_usual_cut_is_among_the_named_ones_and_all_of_them_are_listed(name: str) -> None:
    reference = REFERENCES[name]
    assert reference.cut in reference.cuts
    assert set(reference.cuts) <= set(names_to_cut(made(name), images()))


@every
def test_cuts_are_named_from_shallow_to_deep(name: str) -> None:
    model = made(name)
    sizes = [n_parameters(cut(model, after=after).client) for after in REFERENCES[name].cuts]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == len(sizes)


@pytest.mark.parametrize("inside", ["stage1.block1.body.conv1", "stage1.block1.body", "stage2.block1.shortcut"])
def test_the_inside_of_a_residual_block_is_no_place_to_cut(inside: str) -> None:
    names = names_to_cut(made("resnet20"))
    assert inside not in names
    assert "stage1.block1" in names


@every
def test_a_few_steps_lower_the_loss(name: str) -> None:
    model = made(name, n_classes=2)
    x = torch.rand(6, 3, 32, 32)
    y = torch.arange(6) % 2
    x[y == 1, 0] += 1.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(5):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert losses[-1] < 0.9 * losses[0]


@every
def test_activations_neither_die_nor_explode_at_the_start(name: str) -> None:
    model = made(name).train()
    with torch.no_grad():
        deviation = float(model(torch.randn(8, 3, 32, 32)).std())
    assert 0.05 < deviation < 20


@every
def test_impossible_images_and_classes_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(UsageError, match=r"^this network needs images of at least \d+ px, got 4×4$"):
        REFERENCES[name](n_classes=10, image_shape=(3, 4, 4))
    with pytest.raises(UsageError, match="at least 2 classes, got 1"):
        REFERENCES[name](n_classes=1, image_shape=(3, 32, 32))


def test_a_side_that_patches_do_not_fill_is_refused() -> None:
    with pytest.raises(UsageError, match="divisible by 4, got 30×30"):
        vit(n_classes=10, image_shape=(3, 30, 30))
