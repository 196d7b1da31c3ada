"""A shadow client: nothing of the victim's weights reaches it, and with the server's head it learns to read z_sent."""

import gc
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from splitveil.attacks import (
    Box,
    Course,
    DecoderAttack,
    Family,
    Knowledge,
    Seen,
    ShadowAttack,
    Threat,
    grant,
    oracle_of,
)
from splitveil.attacks.shadow import statistics_gap
from splitveil.check import UsageError
from splitveil.data import ImageSet, Part, Role, fashion
from splitveil.fitting import Plan
from splitveil.mechanisms import Gaussian, Identity
from splitveil.metrics import mse
from splitveil.networks import small_cnn, vit
from splitveil.randomness import SeededSource
from splitveil.split import Client, Normalize, Split, cut
from splitveil.training import Recipe, train
from worlds.small import row_images, small_split

DATA = row_images(n_train=300, n_other=300)
FREE, HEAD = Threat(Box.QUERY_FREE), Threat(Box.QUERY_FREE, head_known=True)
QUICK = Plan(steps=150, lr=5e-3, warmup=5, ema=0.9, check_every=50)


@pytest.fixture(scope="module")
def split():
    recipe = Recipe(epochs=6, batch_size=30, lr=0.05, warmup_epochs=0)
    return train(small_split(mechanism=Gaussian(std=0.02), size=16), DATA, recipe, device="cpu").split


def known(split, threat: Threat) -> Knowledge:
    oracle = oracle_of(split.client)
    return grant(
        threat, oracle=oracle, auxiliary=DATA.auxiliary, selection=DATA.selection, n_classes=3, head=split.server
    )


def reachable(root: object) -> list[Tensor]:
    """Every tensor that can be reached from an object, however deep, but not through code."""
    seen, found, todo = set(), [], [root]
    while todo:
        each = todo.pop()
        is_code = isinstance(each, type | type(gc)) or (callable(each) and not isinstance(each, nn.Module))
        if id(each) in seen or is_code:
            continue
        seen.add(id(each))
        if isinstance(each, Tensor):
            found.append(each)
        todo += gc.get_referents(each)
    return found


def test_no_weight_of_the_client_can_be_reached(split):
    granted = reachable(known(split, FREE))
    secret = [value for value in split.client.state_dict().values() if value.is_floating_point()]
    assert len(granted) > len(secret)
    for value in secret:
        assert not any(tensor.shape == value.shape and torch.equal(tensor, value) for tensor in granted)
    white = reachable(known(split, Threat()))  # the same search finds them where they are granted
    assert any(tensor.shape == secret[0].shape and torch.equal(tensor, secret[0]) for tensor in white)


def test_a_family_is_told_by_its_layers_and_its_seed(split):
    family = Family(split.client)
    one, same, other = family.fresh(0).state_dict(), family.fresh(0).state_dict(), family.fresh(1).state_dict()
    assert one.keys() == split.client.state_dict().keys()
    assert all(torch.equal(value, same[name]) for name, value in one.items())
    assert not torch.equal(one["encoder.body.0.weight"], other["encoder.body.0.weight"])
    assert str(family.fresh(0)) == str(split.client)


@pytest.mark.parametrize("reference", [small_cnn, vit])
def test_every_number_of_a_network_is_drawn_anew(reference):
    torch.manual_seed(0)
    image = (1, 16, 16)
    network = reference(n_classes=3, image_shape=image)
    with torch.no_grad():
        for number in [*network.parameters(), *network.buffers()]:
            if number.is_floating_point():
                number.uniform_(3, 4)
    normalize = Normalize(mean=(0.5,), std=(0.25,))
    client = cut(network, after=reference.cut, normalize=normalize, example=torch.zeros(2, *image)).client
    fresh = Family(client).fresh(0).state_dict()
    for name, value in fresh.items():
        if value.is_floating_point() and value.numel() > 1:
            assert not torch.equal(value, client.state_dict()[name]), name
            assert value.abs().max() < 3, name
    assert torch.equal(next(v for n, v in fresh.items() if n.endswith("std")).flatten(), torch.tensor([0.25]))


class Partial(nn.Linear):
    """Resets its weight and forgets the rest."""

    def __init__(self) -> None:
        super().__init__(256, 4)
        self.scale = nn.Parameter(torch.full((4,), 7.0))
        self.register_buffer("shift", torch.full((4,), 8.0))
        self.register_buffer("order", torch.tensor([3, 1, 0, 2]))

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return (super().forward(x) * self.scale + self.shift)[:, self.order]


def test_what_a_layer_s_own_reset_leaves_out_is_drawn_anew_too():
    client = Client(nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1), nn.Flatten(), Partial()), Identity())
    fresh = Family(client).fresh(0)
    for name in ("weight", "bias", "scale", "shift"):
        ours, theirs = getattr(fresh.encoder[3], name), getattr(client.encoder[3], name)
        assert ours.isfinite().all()
        assert not (ours == theirs).any(), name
    assert fresh.encoder[3].order.tolist() == [3, 1, 0, 2]
    assert fresh.encoder[1].running_var.item() == fresh.encoder[1].weight.item() == 1  # as batch norm resets itself
    assert fresh(torch.rand(2, 1, 16, 16), source=SeededSource(0)).isfinite().all()


@pytest.mark.parametrize("hidden", [torch.ones(3), [torch.ones(3)], {"a": (torch.ones(3),)}, [nn.Linear(2, 2)]])
def test_numbers_that_cannot_be_drawn_anew_are_refused(hidden):
    encoder = nn.Sequential(nn.Flatten())
    encoder[0].secret = hidden
    with pytest.raises(UsageError, match=r"may not see '0\.secret' of the encoder"):
        Family(Client(encoder, Identity()))


def test_with_the_server_s_head_the_shadow_speaks_the_victim_s_language(split):
    x, y = DATA.victims.images(), DATA.victims.labels
    understood = {}
    for head, threat in ((True, HEAD), (False, FREE)):
        shadow, _ = ShadowAttack(head=head, batch=64, plan=QUICK).shadow(known(split, threat), Course(seed=0))
        with torch.no_grad():
            logits = split.server(shadow(x, source=SeededSource(0)))
        understood[head] = (logits.argmax(1) == y).float().mean().item()
    assert understood[True] > 0.9
    assert understood[False] < 0.7


@pytest.mark.parametrize("steps", [20, 4000])
def test_a_shadow_that_was_cut_short_is_told_though_its_decoder_is_finished(split, steps):
    flat = Plan(steps=60, lr=1e-9, warmup=1, check_every=5)
    plan = Plan(steps=steps, lr=5e-3, warmup=5, ema=0.9, check_every=5, patience=3, min_gain=0.5)
    attack = ShadowAttack(batch=64, plan=plan, decoder=DecoderAttack("conv", batch=32, plan=flat))
    assert attack.fit(known(split, FREE), seed=0).health.still_falling is (steps == 20)


def test_the_server_s_head_is_left_as_it_was(split):
    before = {name: value.clone() for name, value in split.server.state_dict().items()}
    ShadowAttack(head=True, batch=64, plan=QUICK).shadow(known(split, HEAD), Course(seed=0))
    assert all(torch.equal(value, before[name]) for name, value in split.server.state_dict().items())
    assert all(parameter.requires_grad for parameter in split.server.parameters())


def test_the_head_must_be_granted(split):
    oracle = oracle_of(split.client)
    with pytest.raises(UsageError, match="needs the server's half"):
        grant(HEAD, oracle=oracle, auxiliary=DATA.auxiliary, selection=DATA.selection)
    assert known(split, FREE).head is None


def test_images_without_labels_make_no_shadow(split):
    oracle = oracle_of(split.client)
    plain = grant(FREE, oracle=oracle, auxiliary=DATA.auxiliary.unlabeled(), selection=DATA.selection, n_classes=3)
    with pytest.raises(UsageError, match="needs labeled images"):
        ShadowAttack().fit(plain, seed=0)


SMALL = {Role.TRAIN: 1000, Role.AUXILIARY: 800, Role.SELECTION: 100, Role.VICTIMS: 200}


def halved(part: Part) -> Part:
    return Part(F.avg_pool2d(part.pixels.float(), 2).round().to(torch.uint8), part.labels)


@pytest.fixture(scope="module")
def clothes() -> ImageSet:
    data = fashion()
    return data.with_parts({role: halved(data.part(role).take(n)) for role, n in SMALL.items()})


@pytest.fixture(scope="module")
def normed(clothes) -> Split:
    """A trained client whose server has two batch norms."""
    torch.manual_seed(0)
    client = [nn.Conv2d(1, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6), nn.ReLU()]
    server = [nn.Conv2d(6, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    server += [nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten()]
    split = cut(nn.Sequential(*client, *server, nn.Linear(256, 10)), after="2", mechanism=Gaussian(std=0.1))
    recipe = Recipe(epochs=3, batch_size=64, lr=0.05, warmup_epochs=0)
    return train(split, clothes, recipe, device="cpu").split


def knowing_the_head(split: Split, data: ImageSet) -> Knowledge:
    oracle, own = oracle_of(split.client), data.auxiliary
    return grant(HEAD, oracle=oracle, auxiliary=own, selection=data.selection, n_classes=10, head=split.server)


def test_with_the_head_s_statistics_the_victims_come_back_better_than_without_and_than_the_mean_image(normed, clothes):
    x, error = clothes.victims.images(), {}
    seen = Seen(oracle_of(normed.client).release(x, source=SeededSource(5, "victims")))
    plan = Plan(steps=400, lr=5e-3, warmup=10, ema=0.98, check_every=100)
    decoder = DecoderAttack("conv", batch=32, plan=Plan(steps=80, lr=1e-2, warmup=5, ema=0.9, check_every=40))
    for weight in (0.0, 10.0):
        attack = ShadowAttack(head=True, statistics=weight, batch=64, plan=plan, decoder=decoder)
        error[weight] = mse(x, attack.fit(knowing_the_head(normed, clothes), seed=0)(seen)).mean().item()
    prior = mse(x, clothes.auxiliary.images().mean(0, keepdim=True).expand_as(x)).mean().item()
    assert error[10.0] < 0.4 * prior
    assert error[10.0] < 0.6 * error[0.0]


def test_a_head_with_batch_norms_keeps_its_statistics_and_has_nobody_listening(normed, clothes):
    before = {name: value.clone() for name, value in normed.server.state_dict().items()}
    plan = Plan(steps=4, warmup=1, check_every=2)
    ShadowAttack(head=True, batch=16, plan=plan).shadow(knowing_the_head(normed, clothes), Course(seed=0))
    assert all(torch.equal(value, before[name]) for name, value in normed.server.state_dict().items())
    assert not any(module._forward_pre_hooks for module in normed.server.modules())


@pytest.mark.parametrize("shape", [(40, 3), (40, 3, 5), (40, 3, 5, 4)])
def test_the_gap_is_its_formula(shape):
    rng = torch.Generator().manual_seed(0)
    layer = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)](3).eval()
    layer.running_mean.copy_(torch.tensor([0.5, -1.0, 0.0]))
    layer.running_var.copy_(torch.tensor([0.3, 2.0, 1.0]))
    x = torch.randn(shape, generator=rng)
    wanted = 0.0
    for c in range(3):
        values, mean, var = x[:, c].double(), layer.running_mean[c].item(), layer.running_var[c].item()
        ratio = values.var(correction=0).item() / var
        wanted += ((values.mean().item() - mean) ** 2 / var + math.log(ratio) ** 2) / 3
    assert statistics_gap(layer, x).item() == pytest.approx(wanted, rel=1e-3)


def test_channels_that_never_vary_have_a_finite_gap_and_slope():
    x = torch.zeros(4, 2, requires_grad=True)
    gap = statistics_gap(nn.BatchNorm1d(2).eval(), x)
    gap.backward()
    assert gap.isfinite()
    assert x.grad.isfinite().all()


def test_without_batch_norms_the_weight_of_statistics_changes_nothing(split):
    plan = Plan(steps=10, lr=5e-3, warmup=1, check_every=5)
    shadows = [
        ShadowAttack(head=True, statistics=weight, batch=32, plan=plan).shadow(known(split, HEAD), Course(seed=0))[0]
        for weight in (0.0, 10.0)
    ]
    one, other = (shadow.state_dict() for shadow in shadows)
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_negative_weight_is_refused():
    with pytest.raises(UsageError, match="statistics"):
        ShadowAttack(head=True, statistics=-1.0)


def test_its_decoder_hears_nothing_that_a_shadow_has_not():
    with pytest.raises(UsageError, match="told nothing, got told='label'"):
        ShadowAttack(decoder=DecoderAttack("conv", told="label"))
