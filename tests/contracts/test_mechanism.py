"""What every mechanism promises, run over every final class."""

import json

import pytest
import torch
from torch import Tensor, nn

from splitveil.dp import NonPrivate
from splitveil.mechanisms import (
    KINDS,
    Chain,
    Clip,
    Dropout,
    Gaussian,
    Guarantee,
    Identity,
    Laplace,
    Mechanism,
    Quantize,
    TopK,
    from_settings,
    to_settings,
)
from splitveil.randomness import Rows, SeededSource, SystemSource

MATRIX = [
    Identity(),
    Clip(radius=1.5),
    Clip(radius=2.5, norm=1),
    Gaussian(std=0.3),
    Laplace(scale=0.2),
    Dropout(rate=0.4),
    TopK(keep=0.25),
    TopK(keep=5),
    Quantize(levels=5, low=-1.0, high=1.0),
    Chain([Clip(radius=2.0), Dropout(rate=0.3), Gaussian(std=0.5), Quantize(levels=9, low=-2.0, high=2.0)]),
    Chain([Laplace(scale=0.1), Chain([TopK(keep=7), Gaussian(std=0.2)])]),
]
SHAPES = [(6, 8, 4, 4), (6, 9, 16), (6, 32)]  # maps, tokens, vectors
CPU = torch.device("cpu")

every = pytest.mark.parametrize("mechanism", MATRIX, ids=lambda m: f"{m.name}-{json.dumps(m.settings())[:40]}")


def features(shape: tuple[int, ...] = SHAPES[0]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


def test_the_matrix_holds_every_final_class() -> None:
    ours = {kind for kind in Mechanism.__subclasses__() if kind.__module__.startswith("splitveil.")}
    assert {type(mechanism) for mechanism in MATRIX} == set(KINDS.values()) == ours


@every
@pytest.mark.parametrize("shape", SHAPES)
def test_shape_and_dtype_are_kept(mechanism: Mechanism, shape: tuple[int, ...]) -> None:
    for z in (features(shape), features(shape).double()):
        sent = mechanism(z, source=SeededSource(0))
        assert (sent.shape, sent.dtype) == (z.shape, z.dtype)


@every
def test_send_is_pure(mechanism: Mechanism) -> None:
    z = features()
    noise = mechanism.draw(z.shape, SeededSource(0), device=CPU)
    kept_z, kept_noise = z.clone(), [drawn.clone() for drawn in noise]
    first, second = mechanism.send(z, noise), mechanism.train(not mechanism.training).send(z, noise)
    assert torch.equal(first, second)
    assert torch.equal(z, kept_z)
    assert all(torch.equal(drawn, kept) for drawn, kept in zip(noise, kept_noise, strict=True))


@every
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_do_not_see_each_other(mechanism: Mechanism, shape: tuple[int, ...]) -> None:
    z = features(shape)
    noise = mechanism.draw(z.shape, SeededSource(0), device=CPU)
    together = mechanism.send(z, noise)
    alone = [mechanism.send(z[i : i + 1], tuple(drawn[i : i + 1] for drawn in noise)) for i in range(len(z))]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-6, atol=1e-6)


@every
def test_drawing_some_rows_gives_those_rows_of_the_whole_draw(mechanism: Mechanism) -> None:
    whole = mechanism.draw((10, 8, 4, 4), SeededSource(3, "noise"), device=CPU)
    some = mechanism.draw((4, 8, 4, 4), SeededSource(3, "noise", rows=Rows(first=5, total=10)), device=CPU)
    assert all(torch.equal(part, drawn[5:9]) for part, drawn in zip(some, whole, strict=True))


@every
def test_number_of_draws_and_randomness_are_told_truly(mechanism: Mechanism) -> None:
    z = features()
    assert len(mechanism.draw(z.shape, SeededSource(0), device=CPU)) == mechanism.n_draws
    same = torch.equal(mechanism(z, source=SeededSource(0)), mechanism(z, source=SeededSource(1)))
    assert mechanism.is_random is not same
    assert mechanism.is_random is not torch.equal(
        mechanism(z, source=SystemSource()), mechanism(z, source=SystemSource())
    )


@every
def test_settings_rebuild_an_equal_mechanism_through_json(mechanism: Mechanism) -> None:
    settings = to_settings(mechanism)
    rebuilt = from_settings(json.loads(json.dumps(settings)))
    assert type(rebuilt) is type(mechanism)
    assert to_settings(rebuilt) == settings
    z = features()
    assert torch.equal(rebuilt(z, source=SeededSource(0)), mechanism(z, source=SeededSource(0)))
    assert (rebuilt.noise_std, rebuilt.event()) == (mechanism.noise_std, mechanism.event())


@every
def test_gradient_reaches_z(mechanism: Mechanism) -> None:
    z = features().requires_grad_()
    mechanism(z, source=SeededSource(0)).square().sum().backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()
    assert (z.grad.flatten(1).abs().amax(1) > 0).all()


@every
def test_the_gradient_of_an_all_zero_sample_is_finite(mechanism: Mechanism) -> None:
    z = torch.zeros(2, 8, requires_grad=True)
    mechanism(z, source=SeededSource(0)).sum().backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()


@every
def test_nothing_is_learned(mechanism: Mechanism) -> None:
    assert list(mechanism.state_dict()) == []
    assert list(mechanism.parameters()) == []


@every
def test_no_bound_no_epsilon(mechanism: Mechanism) -> None:
    is_claimed = not isinstance(mechanism.event(), NonPrivate)
    assert is_claimed is (isinstance(mechanism, Chain) and isinstance(next(iter(mechanism)), Clip))


@every
def test_a_release_made_before_is_kept_by_everything_after(mechanism: Mechanism) -> None:
    released = Chain([Clip(radius=1.0), Gaussian(std=2.0)]).follow(Guarantee())
    assert mechanism.follow(released).event == released.event


@every
def test_bounds_that_are_claimed_hold(mechanism: Mechanism) -> None:
    inside = Clip(radius=1.0, norm=1)
    known = mechanism.follow(inside.follow(Guarantee()))
    sent = mechanism(inside(100 * features(), source=SeededSource(0)), source=SeededSource(1)).flatten(1).double()
    assert (sent.norm(dim=1) <= known.l2).all()
    assert (sent.norm(p=1, dim=1) <= known.l1).all()


@pytest.mark.parametrize("mechanism", [m for m in MATRIX if m.name in ("gaussian", "laplace")], ids=lambda m: m.name)
def test_noise_of_the_stated_scale_is_accepted_and_any_other_rejected(mechanism: Mechanism) -> None:
    """40,000 draws: the variance is known to about 2 % (Laplace), so 15 % off in σ is far outside."""
    z = torch.zeros(40, 1000)
    for source in (SeededSource(11), SystemSource()):
        measured = float(mechanism(z, source=source).double().std())
        assert measured == pytest.approx(mechanism.noise_std, rel=0.05)
        for wrong in (0.5, 0.85, 1.15, 2.0):
            assert measured != pytest.approx(wrong * mechanism.noise_std, rel=0.05)


class _Sending(nn.Module):
    def __init__(self, mechanism: Mechanism) -> None:
        super().__init__()
        self.mechanism = mechanism

    def forward(self, z: Tensor, noise: tuple[Tensor, ...]) -> Tensor:
        return self.mechanism.send(z, noise)


@every
def test_send_exports_as_a_graph_of_z_and_noise_for_any_batch(mechanism: Mechanism) -> None:
    """What deployment ships: the noise comes in from outside, the batch size is open."""
    batch = torch.export.Dim("batch", min=2)
    z = features()
    noise = mechanism.draw(z.shape, SeededSource(0), device=CPU)
    dynamic = {"z": {0: batch}, "noise": tuple({0: batch} for _ in noise)}
    exported = torch.export.export(_Sending(mechanism), (z, noise), dynamic_shapes=dynamic, strict=False).module()
    other = features((9, 8, 4, 4))
    noise = mechanism.draw(other.shape, SeededSource(1), device=CPU)
    assert torch.equal(exported(other, noise), mechanism.send(other, noise))
