"""A diffusion prior: its denoiser, its samples, and its posterior, each against a closed form."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from splitveil import fitting
from splitveil.attacks import (
    DecoderAttack,
    DiffusionAttack,
    Knowledge,
    Pairs,
    Ridge,
    Seen,
    Threat,
    diffusion,
    grant,
    oracle_of,
    sampling,
)
from splitveil.attacks.adversarial import distance_over_scales, energy_distance
from splitveil.attacks.base import Course
from splitveil.attacks.channel import channel_of
from splitveil.attacks.sampling import Sampler
from splitveil.check import UsageError
from splitveil.data import fashion
from splitveil.fitting import Plan
from splitveil.mechanisms import Chain, Dropout, Gaussian
from splitveil.metrics import interval, mse
from splitveil.networks.denoiser import Denoiser
from splitveil.randomness import SeededSource, stream
from splitveil.split import Client
from worlds.linear_gaussian import LinearGaussian, Matrix, white, world

WORLD = world()
PLAN = Plan(steps=250, lr=4e-3, warmup=20, ema=0.98, check_every=50)
ATTACK = DiffusionAttack(width=16, batch=64, plan=PLAN, steps=40, samples=8, n_tuned=24)

QUICK = replace(ATTACK, steps=20, samples=4)


def held(this: LinearGaussian) -> Knowledge:
    parts = {"auxiliary": this.part(2000, 0, "auxiliary"), "selection": this.part(300, 0, "selection")}
    return grant(Threat(), oracle=oracle_of(this.client()), **parts)


class Exact(Denoiser):
    """The best denoiser of the world's images: E[x | x + σn] in closed form."""

    def __init__(self, this: LinearGaussian) -> None:
        super().__init__(this.image_shape, width=4)
        self.values, self.vectors = (part.float() for part in torch.linalg.eigh(this.covariance))
        self.mean.copy_(this.mean.reshape(self.mean.shape))
        self.spread.fill_(this.prior_mse**0.5)

    def forward(self, noisy: Tensor, sigma: Tensor) -> Tensor:
        gain = self.values / (self.values + sigma[:, None].square())
        moved = ((noisy - self.mean).flatten(1) @ self.vectors * gain) @ self.vectors.T
        return self.mean + moved.reshape(noisy.shape)


def sampler(this: LinearGaussian, steps: int = 60) -> Sampler:
    client, own = this.client(), this.part(500, 0, "own").images()
    z_sent = oracle_of(client).release(own, source=SeededSource(0, "own"))
    channel = channel_of(client, Pairs(own, Seen(z_sent)), loss="likelihood", draws=1, seed=0)
    bare = Sampler(Exact(this), channel, steps, 0.9, 0)
    return replace(bare, doubts=bare.measure(own))


@pytest.mark.parametrize("releases", [1, 4])
def test_with_a_perfect_denoiser_the_mean_of_samples_is_near_the_posterior_mean(releases):
    draw, x = sampler(WORLD), WORLD.part(200, 0, "victims").images()
    seen = Seen(oracle_of(WORLD.client()).release(x, source=SeededSource(1), releases=releases))
    heard = draw.channel.hear(seen.z_sent)
    x_hat = draw.mean(heard, torch.ones(200), samples=16)
    found, best = mse(x, x_hat), mse(x, WORLD.best_attack(seen))
    assert interval(found - best).high >= 0
    assert found.mean() <= 1.15 * best.mean()


def test_with_a_perfect_denoiser_samples_are_images_of_the_world():
    drawn, real, other = sampler(WORLD).draw(500), *(WORLD.part(500, k, "real").images() for k in (1, 2))
    assert energy_distance(drawn, real) < energy_distance(real, other) + 0.02 * energy_distance(white(real), real)


@pytest.fixture(scope="module")
def fitted() -> fitting.Fitted:
    return ATTACK.learn(held(WORLD), WORLD.part(300, 0, "selection").images(), Course(0))


@pytest.fixture(scope="module")
def learned(fitted) -> Denoiser:
    return fitted.network


def test_a_fitted_denoiser_is_near_the_best_one(learned):
    x = WORLD.part(500, 0, "victims").images()
    for sigma in (0.05, 0.1, 0.2):
        noisy = x + sigma * torch.randn(x.shape, generator=stream(0, "noisy"))
        with torch.no_grad():
            ours, best = (mse(x, net(noisy, torch.full((500,), sigma))).mean() for net in (learned, Exact(WORLD)))
        assert best < ours * 1.001
        assert ours < 1.12 * best


def test_its_samples_are_closer_to_the_data_than_noise(learned):
    """In energy distance over three scales: a tenth of what white images of the same mean and spread have; over pixels
    alone, half."""
    real = WORLD.part(500, 1, "real").images()
    drawn = Sampler(learned, sampler(WORLD).channel, 40, 0.9, 0).draw(500)
    assert distance_over_scales(drawn, real) < 0.1 * distance_over_scales(white(real), real)
    assert energy_distance(drawn, real) < 0.5 * energy_distance(white(real), real)


@pytest.mark.slow
def test_its_samples_of_real_things_are_too():
    """The same on the embedded images, and it is the training that does it: 0.22 of what white images have, and 0.18 of
    what the untrained network paints, which is farther than they are."""
    data = fashion()
    attack = replace(ATTACK, batch=32, plan=replace(PLAN, steps=200))
    known = grant(
        Threat(), oracle=oracle_of(WORLD.client()), auxiliary=data.auxiliary, selection=data.selection
    )  # a client that nobody asks
    trained = attack.learn(known, data.selection.images(slice(100)), Course(0)).network
    untrained = Denoiser(data.image_shape, width=16)
    untrained.calibrate(data.auxiliary.images(slice(2000)))
    real, channel = data.victims.images(slice(200)), sampler(WORLD).channel
    drawn, before = (Sampler(net, channel, 20, 0.9, 0).draw(200) for net in (trained, untrained))
    ours, noise, start = (distance_over_scales(images, real) for images in (drawn, white(real), before))
    assert ours < 0.3 * noise
    assert ours < 0.3 * start


def test_the_attack_is_above_the_optimum_and_near_it(fitted, monkeypatch):
    monkeypatch.setattr(DiffusionAttack, "learn", lambda *arguments: fitted)
    known, x = held(WORLD), WORLD.part(100, 0, "victims").images()
    seen = Seen(oracle_of(WORLD.client()).release(x, source=SeededSource(1)))
    found, best = mse(x, QUICK.fit(known, seed=0)(seen)), mse(x, WORLD.best_attack(seen))
    assert interval(found - best).high >= 0
    assert found.mean() < 1.2 * best.mean()


@pytest.mark.parametrize("mechanism", [Chain([Dropout(rate=0.3), Gaussian(std=0.05)]), Dropout(rate=0.3)])
def test_it_expects_what_may_be_dropped(mechanism, monkeypatch):
    """Below least squares, which cannot know what was dropped of one input."""
    wide = world(features=32, noise_std=0.1)
    exact = as_if_fitted(wide)
    monkeypatch.setattr(DiffusionAttack, "learn", lambda *arguments: exact)
    client = Client(Matrix(wide.matrix), mechanism)
    parts = {"auxiliary": wide.part(2000, 0, "auxiliary"), "selection": wide.part(300, 0, "selection")}
    known, x = grant(Threat(), oracle=oracle_of(client), **parts), wide.part(100, 0, "victims").images()
    seen = Seen(oracle_of(client).release(x, source=SeededSource(1)))
    found, affine = (mse(x, attack.fit(known, seed=0)(seen)).mean() for attack in (QUICK, Ridge()))
    assert found < 0.9 * affine


class Folded(nn.Module):
    """Features that turn back again and again: their slopes point anywhere."""

    def __init__(self, this: LinearGaussian) -> None:
        super().__init__()
        self.straight = Matrix(this.matrix)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(12 * self.straight(x))


def test_from_a_decoder_s_picture_it_goes_where_slopes_alone_do_not_lead(monkeypatch):
    """Nearer than the decoder, where sampling from noise is behind it."""
    exact = as_if_fitted(WORLD)
    monkeypatch.setattr(DiffusionAttack, "learn", lambda *arguments: exact)
    client = Client(Folded(WORLD), Gaussian(std=0.05))
    parts = {"auxiliary": WORLD.part(2000, 0, "auxiliary"), "selection": WORLD.part(300, 0, "selection")}
    known, x = grant(Threat(), oracle=oracle_of(client), **parts), WORLD.part(100, 0, "victims").images()
    seen = Seen(oracle_of(client).release(x, source=SeededSource(1)))
    decoder = DecoderAttack("conv", batch=64, plan=Plan(steps=150, lr=4e-3, ema=0.95, check_every=50))
    attacks = (QUICK, replace(QUICK, start="decoder", decoder=decoder), decoder)
    alone, near, painted = (mse(x, attack.fit(known, seed=0)(seen)).mean() for attack in attacks)
    assert near < painted
    assert near < 0.95 * alone


@pytest.mark.parametrize("releases", [1, 4])
def test_from_a_decoder_it_is_above_the_optimum_and_near_it(releases, monkeypatch):
    exact = as_if_fitted(WORLD)
    monkeypatch.setattr(DiffusionAttack, "learn", lambda *arguments: exact)
    parts = {"auxiliary": WORLD.part(2000, 0, "auxiliary"), "selection": WORLD.part(300, 0, "selection")}
    known = grant(Threat(releases=releases), oracle=oracle_of(WORLD.client()), **parts)
    x = WORLD.part(100, 0, "victims").images()
    seen = Seen(oracle_of(WORLD.client()).release(x, source=SeededSource(1), releases=releases))
    decoder = DecoderAttack("conv", batch=64, plan=Plan(steps=100, lr=4e-3, ema=0.95, check_every=50))
    attack = replace(QUICK, start="decoder", decoder=decoder)
    assert attack.name == "diffusion-decoder"
    found, best = mse(x, attack.fit(known, seed=0)(seen)), mse(x, WORLD.best_attack(seen))
    assert interval(found - best).high >= 0
    assert found.mean() < 1.2 * best.mean()


def as_if_fitted(this: LinearGaussian) -> fitting.Fitted:
    """As if the best denoiser had been fitted."""
    return fitting.Fitted(Exact(this), (fitting.Check(1, 0.0, 0.0, 0.0),), "plateau", still_falling=False)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 9, 14)])
def test_a_denoiser_fits_any_image_and_starts_by_shrinking(shape):
    network = Denoiser(shape, width=8)
    x = torch.rand(3, *shape, generator=stream(0))
    network.calibrate(x)
    low, high = (network(x, torch.full((3,), sigma)) for sigma in (1e-4, 1e3))
    torch.testing.assert_close(low, x, atol=1e-3, rtol=0)
    torch.testing.assert_close(high, x.mean(0).expand_as(x), atol=1e-2, rtol=0)


def test_it_goes_on_where_it_was_interrupted(tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "SAVE_EVERY", 0.0)
    quick = replace(ATTACK, width=8, plan=replace(PLAN, steps=12, check_every=4), steps=4, samples=2, n_tuned=4)
    known, state = held(WORLD), tmp_path / "trial.fit"
    whole = quick.fit(known, seed=0)

    def stop(check: fitting.Check) -> None:
        if check.step == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quick.fit(known, seed=0, watch=stop, state=state)
    steps: list[int] = []
    again = quick.fit(known, seed=0, watch=lambda check: steps.append(check.step), state=state)
    assert steps[0] > 4
    seen = Seen(oracle_of(WORLD.client()).release(WORLD.part(3, 1).images(), source=SeededSource(0)))
    torch.testing.assert_close(again(seen), whole(seen), atol=1e-5, rtol=0)


BRIEF = replace(ATTACK, width=8, plan=replace(PLAN, steps=12, check_every=4), steps=21, samples=2, n_tuned=4)


def test_its_health_tells_the_steps_done(monkeypatch):
    flat = replace(BRIEF, steps=2, plan=replace(PLAN, steps=4000, lr=1e-9, check_every=2, patience=2))
    health = flat.fit(held(WORLD), seed=0).health
    assert health.steps < 100
    assert not health.still_falling


def test_what_is_measured_does_not_depend_on_how_many_images_are_held_at_once(monkeypatch):
    own = WORLD.part(60, 0, "own").images()
    bare = sampler(WORLD, steps=5)
    whole, seen, denoise = bare.measure(own), [], Sampler._denoise
    monkeypatch.setattr(sampling, "PIXELS", {"cpu": 64 * 7})
    monkeypatch.setattr(Sampler, "_denoise", lambda self, x, sigma: (seen.append(len(x)), denoise(self, x, sigma))[1])
    torch.testing.assert_close(bare.measure(own), whole)
    assert max(seen) == 7


def test_whoever_watches_can_end_it_among_the_victims_and_it_goes_on_there(tmp_path, monkeypatch):
    monkeypatch.setattr(sampling, "PIXELS", {"cpu": 64 * 2 * 3})  # three victims at once
    monkeypatch.setattr(diffusion, "N_OWN", 12)
    known, state = held(WORLD), tmp_path / "trial.fit"
    seen = Seen(oracle_of(WORLD.client()).release(WORLD.part(7, 1).images(), source=SeededSource(0)))
    wanted = BRIEF.fit(known, seed=0)(seen)
    checks: list[fitting.Check] = []
    most = 10_000

    def watch(check: fitting.Check) -> None:
        checks.append(check)
        if len(checks) >= most:
            raise KeyboardInterrupt

    inverter = BRIEF.fit(known, seed=0, watch=watch, state=state)
    most = (fitted := len(checks)) + 5  # three words about each piece: the first of three is finished
    with pytest.raises(KeyboardInterrupt):
        inverter(seen)
    assert {check.score for check in checks[fitted:]} == {inverter.health.selection_mse}
    most = 10_000
    monkeypatch.setattr(Sampler, "measure", None)  # what was measured is not measured again
    resumed = BRIEF.fit(known, seed=0, watch=watch, state=state)
    fitted = len(checks)
    torch.testing.assert_close(resumed(seen), wanted, atol=1e-5, rtol=0)
    assert len(checks) - fitted == 6


def test_fewer_are_sampled_at_once_where_the_channel_holds_more():
    channel = sampler(WORLD).channel
    assert sampler(WORLD).inputs_at_once(2) == sampling.PIXELS["cpu"] // (64 * 2)
    assert sampler(WORLD).inputs_at_once(2, sampling.HELD // 10) == 5
    assert sampler(WORLD).inputs_at_once(2, channel.n_held(torch.zeros(1, 3, 16))) == sampling.PIXELS["cpu"] // (64 * 2)


@pytest.mark.parametrize(
    ("settings", "message"), [({"width": 6}, "multiple of 4"), ({"churn": 1.5}, "churn"), ({"steps": 1}, "steps")]
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        DiffusionAttack(**settings)
