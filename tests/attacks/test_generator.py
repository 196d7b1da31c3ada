"""A generator as prior: its images, the critic it is up against, and searches through it."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from splitveil import fitting
from splitveil.attacks import (
    GeneratorAttack,
    Health,
    Inverter,
    Knowledge,
    Ridge,
    Seen,
    Threat,
    generator,
    grant,
    oracle_of,
    refinement,
)
from splitveil.attacks.adversarial import Duel, distance_over_scales, energy_distance, wasserstein
from splitveil.attacks.base import Course
from splitveil.attacks.descent import Descent
from splitveil.attacks.latent import Calibrated
from splitveil.attacks.refinement import some
from splitveil.data import fashion
from splitveil.fitting import Check, Fitted, Plan
from splitveil.mechanisms import Chain, Dropout, Gaussian
from splitveil.metrics import interval, mse
from splitveil.networks.generator import Critic, Generator
from splitveil.randomness import SeededSource, stream
from splitveil.split import Client
from worlds.linear_gaussian import Matrix, white, world

WORLD = world()
PLAN = Plan(steps=100, lr=1e-3, warmup=20, ema=0.98, check_every=50, patience=50)
LATENT = GeneratorAttack(
    latent=16, width=8, batch=64, rounds=2, plan=PLAN, critic_lr=2e-3, steps=40, restarts=2, n_tuned=24
)
FED = GeneratorAttack(
    "decoder", width=8, batch=64, rung="conv", critic_lr=1e-3, plan=Plan(steps=120, lr=4e-3, ema=0.95, check_every=40)
)


def held() -> Knowledge:
    parts = {"auxiliary": WORLD.part(2000, 0, "auxiliary"), "selection": WORLD.part(300, 0, "selection")}
    return grant(Threat(), oracle=oracle_of(WORLD.client()), **parts)


@pytest.fixture(scope="module")
def learned() -> Fitted:
    return LATENT.learn(held(), WORLD.part(300, 0, "selection").images(), Course(0))


def painted(network: nn.Module, n: int, latent: int = 16) -> torch.Tensor:
    with torch.no_grad():
        return network(torch.randn(n, latent, generator=stream(0, "u")))


@pytest.mark.xdist_group("generator")  # all look at one trained prior
def test_its_images_are_closer_to_the_data_than_noise(learned):
    """In energy distance over three scales: a tenth of what white images of the same mean and spread have, and less
    than it began with; over pixels alone it is no farther than they are, with 16 numbers for 64 pixels."""
    real = WORLD.part(1000, 1, "real").images()
    untrained = Generator(WORLD.image_shape, latent=16, width=8)
    untrained.calibrate(WORLD.part(2000, 0, "auxiliary").images())
    ours, before = (painted(net, 1000) for net in (learned.network, untrained))
    assert distance_over_scales(ours, real) < 0.1 * distance_over_scales(white(real), real)
    assert distance_over_scales(ours, real) < 0.7 * distance_over_scales(before, real)
    assert energy_distance(ours, real) < energy_distance(white(real), real)


@pytest.mark.slow
def test_its_images_of_real_things_are_too():
    """The same on the embedded images, where components alone are no longer all there is to learn."""
    data = fashion()
    plan = replace(PLAN, steps=150, check_every=50)
    attack = replace(LATENT, latent=32, plan=plan, critic_lr=1e-3, batch=48)
    known = grant(
        Threat(), oracle=oracle_of(WORLD.client()), auxiliary=data.auxiliary, selection=data.selection
    )  # a client that nobody asks
    trained = attack.learn(known, data.selection.images(slice(400)), Course(0)).network
    real = data.victims.images(slice(400))
    untrained = Generator(data.image_shape, latent=32, width=8)
    untrained.calibrate(data.auxiliary.images(slice(2000)))
    ours, before = (distance_over_scales(painted(net, 400, latent=32), real) for net in (trained, untrained))
    assert ours < 0.1 * distance_over_scales(white(real), real)
    assert ours < 0.8 * before


def test_an_untrained_generator_is_the_gaussian_that_fits_best():
    """With room for every direction: mean and covariance of the images it was calibrated on, up to the squashing."""
    x = WORLD.part(2000, 0, "auxiliary").images()
    for n in (2000, 40):  # either matrix
        network = Generator(WORLD.image_shape, latent=64, width=4)
        network.calibrate(x[:n])
        centered = (x[:n].clamp(0.02, 0.98).logit() - network.base).flatten(1)
        torch.testing.assert_close(
            network.broad.weight @ network.broad.weight.T, centered.T @ centered / n, atol=1e-4, rtol=1e-3
        )


def attacked(attack: GeneratorAttack) -> tuple[torch.Tensor, torch.Tensor]:
    """Errors of the attack and of the posterior mean."""
    x = WORLD.part(200, 0, "victims").images()
    seen = Seen(oracle_of(WORLD.client()).release(x, source=SeededSource(1)))
    return mse(x, attack.fit(held(), seed=0)(seen)), mse(x, WORLD.best_attack(seen))


@pytest.mark.slow
@pytest.mark.xdist_group("generator")  # all look at one trained prior
def test_a_latent_search_is_above_the_optimum_and_near_it(learned, monkeypatch):
    monkeypatch.setattr(GeneratorAttack, "learn", lambda *arguments: learned)
    found, best = attacked(LATENT)
    assert interval(found - best).high >= 0
    assert found.mean() < 1.1 * best.mean()


@pytest.mark.slow
@pytest.mark.xdist_group("generator")  # all look at one trained prior
def test_the_search_itself_finds_images(learned, monkeypatch):
    """Before it is mixed with least squares, which is the optimum in this world whatever the generator paints."""
    monkeypatch.setattr(GeneratorAttack, "learn", lambda *arguments: learned)
    x = WORLD.part(200, 0, "victims").images()
    seen = Seen(oracle_of(WORLD.client()).release(x, source=SeededSource(1)))
    inverter = LATENT.fit(held(), seed=0)
    calibrated = inverter.search.begin.decoder
    latent, affine = (mse(x, each(seen)).mean() for each in calibrated._inverters)
    assert latent < 0.85 * WORLD.prior_mse
    assert affine < latent


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [Chain([Dropout(rate=0.3), Gaussian(std=0.05)]), Dropout(rate=0.3)])
def test_it_expects_what_may_be_dropped(mechanism, learned, monkeypatch):
    """Below least squares, which cannot know what was dropped of one input."""
    monkeypatch.setattr(GeneratorAttack, "learn", lambda *arguments: learned)
    wide = world(features=32, noise_std=0.1)
    client = Client(Matrix(wide.matrix), mechanism)
    parts = {"auxiliary": wide.part(2000, 0, "auxiliary"), "selection": wide.part(300, 0, "selection")}
    known = grant(Threat(), oracle=oracle_of(client), **parts)
    x = wide.part(200, 0, "victims").images()
    seen = Seen(oracle_of(client).release(x, source=SeededSource(1)))
    found, affine = (mse(x, attack.fit(known, seed=0)(seen)).mean() for attack in (LATENT, Ridge()))
    assert found < 0.9 * affine


def test_a_fed_generator_is_above_the_optimum_and_near_it():
    found, best = attacked(FED)
    assert interval(found - best).high >= 0
    assert found.mean() < 1.15 * best.mean()


def test_the_energy_distance_tells_distributions_apart():
    one, two = (WORLD.part(300, k, "real").images() for k in (1, 2))
    assert energy_distance(one, two).abs() < 0.02 * energy_distance(one, two + 0.1)
    a, b = torch.tensor([0.0, 1.0]).reshape(2, 1, 1, 1), torch.tensor([3.0, 5.0]).reshape(2, 1, 1, 1)
    assert energy_distance(a, b).item() == pytest.approx(2 * (3 + 5 + 2 + 4) / 4 - 1 - 2)


def test_the_distance_over_scales_sees_that_pixels_hang_together():
    """White images of the right mean and spread are near in pixels, and far at a quarter of the size."""
    one, two = (WORLD.part(400, k, "real").images() for k in (1, 2))
    assert distance_over_scales(one, two).abs() < 0.05 * distance_over_scales(white(two), two)
    assert distance_over_scales(white(two), two) > 5 * energy_distance(white(two), two) / two.std()
    assert distance_over_scales(3 * one, 3 * two) == pytest.approx(distance_over_scales(one, two).item(), rel=1e-3)


def test_a_critic_that_tells_nothing_pulls_at_nothing():
    torch.manual_seed(0)
    duel = Duel(nn.Identity(), Critic(WORLD.image_shape, width=4), lr=5e-3)
    real = WORLD.part(64, 0).images()
    same = real.clone().requires_grad_()
    (slope,) = torch.autograd.grad(duel.gap(real, same).clamp_min(0).square(), same)
    assert slope.abs().max() < 1e-9
    (steady,) = torch.autograd.grad(-duel.judge(same).mean(), same)
    assert steady.abs().max() > 1e-6


def test_the_critic_s_loss_is_the_difference_of_means_and_the_penalty_on_its_slope():
    slope = torch.tensor([3.0, 4.0]).reshape(1, 2, 1)
    real, painted = (torch.rand(6, 1, 2, 1, generator=stream(k)) for k in (0, 1))
    judge, slopes = (lambda x: (x * slope).sum((1, 2, 3))), slope.expand_as
    charge = wasserstein(judge, slopes, real, painted, SeededSource(0))
    wanted = ((painted - real).mean(0) * slope).sum() + 10 * (5 - 1) ** 2
    torch.testing.assert_close(charge, wanted)


def test_a_critic_learns_to_tell_images_from_noise():
    torch.manual_seed(0)
    duel = Duel(nn.Identity(), Critic(WORLD.image_shape, width=4), lr=5e-3)
    real = WORLD.part(64, 0).images()
    duel.calibrate(real)
    fake = torch.rand(real.shape, generator=stream(0))
    for step in range(30):
        duel.teach(real, fake, SeededSource(0, step))
    fresh = duel.judge(WORLD.part(64, 1).images()).mean() - duel.judge(torch.rand(real.shape)).mean()
    assert fresh > 0.15
    assert list(duel.parameters()) == []  # what the fit moves is the generator's alone


def test_what_cannot_be_trusted_is_left_out():
    own = some(held().pairs, 200, seed=0)
    painted = Calibrated([Blind()], own)(own.seen)
    torch.testing.assert_close(painted, own.x.mean(0).expand_as(own.x), atol=0.02, rtol=0)
    affine = Ridge().fit(held(), seed=0)
    alone, mixed = (mse(own.x, each(own.seen)).mean() for each in (affine, Calibrated([Blind(), affine], own)))
    assert mixed < 1.01 * alone


class Blind(Inverter):
    """Paints noise."""

    @property
    def health(self) -> Health:
        return Health()

    def __call__(self, seen: Seen) -> torch.Tensor:
        return torch.rand(seen.z_sent.shape[1], *WORLD.image_shape, generator=stream(0, "blind"))


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 9, 14)])
def test_any_image_size(shape):
    generator, critic = Generator(shape, latent=5, width=4), Critic(shape, width=4)
    painted = generator(torch.randn(2, 5))
    assert painted.shape == (2, *shape)
    assert 0 <= painted.min() <= painted.max() <= 1
    assert critic(painted).shape == (2,)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 9, 14)])
def test_a_critic_s_slope_is_its_gradient_and_trains_like_it(shape):
    torch.manual_seed(0)
    critic = Critic(shape, width=4).double()
    x = torch.rand(3, *shape, dtype=torch.float64, requires_grad=True)
    (wanted,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    found = critic.slope(x)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)
    weights = [weight for name, weight in critic.named_parameters() if name.endswith("weight")]
    penalties = ((slope.flatten(1).norm(dim=1) - 1).square().mean() for slope in (found, wanted))
    for own, reference in zip(*(torch.autograd.grad(each, weights) for each in penalties), strict=True):
        torch.testing.assert_close(own, reference, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("attack", [LATENT, FED], ids=lambda attack: attack.name)
def test_it_goes_on_where_it_was_interrupted_with_the_critic_it_had(attack, tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "SAVE_EVERY", 0.0)
    plan = Plan(steps=8, lr=2e-3, ema=0.5, check_every=2, warmup=1)
    quick = replace(attack, width=4, batch=8, plan=plan, steps=4, restarts=1, n_tuned=4)
    known, state = held(), tmp_path / "trial.fit"
    whole = quick.fit(known, seed=0)

    def stop(check: fitting.Check) -> None:
        if check.step == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quick.fit(known, seed=0, watch=stop, state=state)
    steps: list[int] = []
    again = quick.fit(known, seed=0, watch=lambda check: steps.append(check.step), state=state)
    assert steps[0] > 2
    seen = Seen(oracle_of(WORLD.client()).release(WORLD.part(3, 1).images(), source=SeededSource(0)))
    torch.testing.assert_close(again(seen), whole(seen), atol=1e-5, rtol=0)


def test_no_search_is_repeated_and_its_health_is_the_generator_s(tmp_path, monkeypatch):
    monkeypatch.setattr(generator, "N_OWN", 20)
    plan = Plan(steps=8, lr=2e-3, ema=0.5, check_every=2, warmup=1)
    quick = replace(LATENT, width=4, batch=8, plan=plan, steps=4, restarts=1, n_tuned=4)
    known, state = held(), tmp_path / "trial.fit"
    first = quick.fit(known, seed=0, state=state)
    monkeypatch.setattr(Descent, "run", None)  # whoever searches fails
    again = quick.fit(known, seed=0, state=state)
    assert again.health == first.health
    assert first.health.still_falling
    assert first.health.steps >= 8
    seen = Seen(oracle_of(WORLD.client()).release(WORLD.part(3, 1).images(), source=SeededSource(0)))
    with pytest.raises(TypeError):
        again(seen)


@pytest.mark.parametrize(("most", "is_falling"), [(-1.0, True), (1.0, False)])
def test_a_latent_search_that_is_not_finished_is_told_though_its_generator_is(most, is_falling, monkeypatch):
    monkeypatch.setattr(generator, "N_OWN", 50)
    monkeypatch.setattr(refinement, "HURRIED", most)
    network = Generator(WORLD.image_shape, latent=8, width=4).eval()
    finished = Fitted(network, (Check(10, 0.0, 0.0, 0.0),), "plateau", still_falling=False)
    monkeypatch.setattr(GeneratorAttack, "learn", lambda *arguments: finished)
    attack = replace(LATENT, latent=8, width=4, steps=2, restarts=1, n_tuned=16)
    calibrated = attack.fit(held(), seed=0).search.begin.decoder
    assert calibrated._inverters[0].health.still_falling is is_falling
