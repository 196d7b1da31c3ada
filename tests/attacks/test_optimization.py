"""Searches by optimization: the likelihood they descend, the numbers they move, and how near the optimum they come."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from splitveil.attacks import (
    DecoderAttack,
    Knowledge,
    OptimizationAttack,
    Pairs,
    Ridge,
    Seen,
    Threat,
    grant,
    oracle_of,
    refinement,
)
from splitveil.attacks.canvas import Canvas, PixelCanvas, gaussian_canvas, network_canvas, total_variation
from splitveil.attacks.channel import Channel, channel_of
from splitveil.attacks.descent import Descent
from splitveil.attacks.refinement import Begin, Search, some
from splitveil.check import UsageError
from splitveil.fitting import Check, Plan
from splitveil.mechanisms import Chain, Clip, Dropout, Gaussian
from splitveil.metrics import interval, mse
from splitveil.networks.untrained import Untrained
from splitveil.randomness import SeededSource, stream
from splitveil.split import Client
from worlds.linear_gaussian import LinearGaussian, Matrix, world

WORLD = world()
WIDE = world(features=60)
MAP = OptimizationAttack(prior="gaussian", start="mean", steps=120, n_tuned=48)


def held(this: LinearGaussian, client: Client | None = None, releases: int = 1) -> Knowledge:
    oracle = oracle_of(client or this.client())
    parts = {"auxiliary": this.part(2000, 0, "auxiliary"), "selection": this.part(300, 0, "selection")}
    return grant(Threat(releases=releases), oracle=oracle, **parts)


def errors(attack: OptimizationAttack, releases: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Errors of the attack and of the posterior mean on the same releases of the same victims."""
    inverter = attack.fit(held(WORLD, releases=releases), seed=0)
    x = WORLD.part(400, 0, "victims").images()
    seen = Seen(oracle_of(WORLD.client()).release(x, source=SeededSource(1, "victims"), releases=releases))
    return mse(x, inverter(seen)), mse(x, WORLD.best_attack(seen))


@pytest.mark.parametrize("releases", [1, 4])
def test_the_most_likely_image_is_the_optimum_where_everything_is_gaussian(releases):
    found, best = errors(MAP, releases)
    assert interval(found - best).high >= 0
    assert found.mean() <= 1.05 * best.mean()


def test_it_ends_near_the_optimum_from_noise_too():
    found, best = errors(replace(MAP, start="noise"))
    assert interval(found - best).high >= 0
    assert found.mean() <= 1.08 * best.mean()


class Bent(nn.Module):
    """Features that an affine map cannot undo."""

    def __init__(self) -> None:
        super().__init__()
        self.straight = Matrix(WIDE.matrix)

    def forward(self, x):
        return torch.tanh(4 * self.straight(x - 0.5))


def test_from_least_squares_it_goes_on_where_they_end():
    client = Client(Bent(), Gaussian(std=0.02))
    oracle = oracle_of(client)
    known = held(WIDE, client)
    x = WIDE.part(400, 0, "victims").images()
    seen = Seen(oracle.release(x, source=SeededSource(1, "victims"), releases=1))
    searched, solved = (mse(x, attack.fit(known, seed=0)(seen)) for attack in (replace(MAP, start="affine"), Ridge()))
    assert interval(solved - searched).low > 0
    assert searched.mean() < 0.9 * solved.mean()


def test_a_search_that_goes_too_far_is_followed_a_part_of_the_way():
    """Told that there is no noise, it explains the noise; without a candidate in between, half of its way is best."""
    client = Client(Matrix(WIDE.matrix), Gaussian(std=0.1))
    known = held(WIDE, client)
    attack = OptimizationAttack(prior="none", start="affine", steps=60, n_tuned=48)
    found = attack.fit(known, seed=0)
    x = WIDE.part(400, 0, "victims").images()
    seen = Seen(oracle_of(client).release(x, source=SeededSource(1, "victims")))
    share = found.choice.share
    assert 0 <= share < 0.9
    assert mse(x, found(seen)).mean() <= 1.02 * mse(x, Ridge().fit(known, seed=0)(seen)).mean()
    assert f"{share:.0%} of the way" in found.health.chosen


@pytest.mark.parametrize(("steps", "is_falling"), [(1, True), (4, True), (12, True), (120, False)])
def test_a_search_that_more_steps_would_help_is_still_falling(steps, is_falling, tmp_path):
    known, attack, state = held(WORLD), replace(MAP, steps=steps), tmp_path / "search"
    found = attack.fit(known, seed=0, state=state)
    assert found.health.still_falling == is_falling
    assert attack.fit(known, seed=0, state=state).health == found.health


def test_half_the_steps_may_do_with_another_weight():
    """With the same one they leave 11 % more; with the one that suits them, less."""
    client = Client(Matrix(WIDE.matrix), Gaussian(std=0.1))
    parts = {"auxiliary": WIDE.part(800, 0, "auxiliary"), "selection": WIDE.part(150, 0, "selection")}
    known = grant(Threat(), oracle=oracle_of(client), **parts)
    attack = OptimizationAttack(prior="tv", start="noise", steps=60, n_tuned=24)
    found = attack.fit(known, seed=0)
    assert found.choice.stop == 60
    assert not found.health.still_falling


def test_a_search_that_stops_early_by_choice_is_not_tried_with_half_of_its_steps(monkeypatch):
    ran, run = [], Descent.run
    monkeypatch.setattr(Descent, "run", lambda descent, *a, **k: ran.append(descent.steps) or run(descent, *a, **k))
    client = Client(Matrix(WIDE.matrix), Gaussian(std=0.1))
    attack = OptimizationAttack(prior="none", start="mean", steps=400, lr=0.3, n_tuned=48)
    found = attack.fit(held(WIDE, client), seed=0)
    assert found.choice.stop < 400
    assert set(ran) == {400}
    assert not found.health.still_falling


@pytest.mark.parametrize(
    ("wanted", "moved", "share"), [(1.0, 2.0, 0.5), (1.0, 0.5, 1.0), (-1.0, 1.0, 0.0), (1.0, 0.0, 0.0)]
)
def test_it_is_followed_as_far_as_least_squares_says(wanted, moved, share):
    sides = (torch.full((1, 2, 3, 4, 4), side) for side in (wanted, moved))
    assert refinement.follow(*sides).item() == share


@pytest.mark.parametrize("n", [20, 400])
def test_whitened_is_the_way_back_from_painted(n):
    images = torch.rand(n, 3, 5, 5, generator=stream(0, "images"))
    canvas = gaussian_canvas(images)
    moved = 0.1 * torch.randn(4, 3, 5, 5, generator=stream(0, "moved"))
    v = canvas.whitened(moved)
    torch.testing.assert_close(canvas.paint(torch.zeros(4, 3, 5, 5), v), moved, rtol=0, atol=1e-5)
    assert (v.norm(dim=1) <= 1.001 * (v + _unseen(canvas, v)).norm(dim=1)).all()


def _unseen(canvas, v):
    """What paints nothing: what lies across the basis, along it."""
    rank = len(canvas.std)
    along = torch.randn(len(v), rank, generator=stream(1, "along")) @ canvas.basis.T
    return torch.cat([torch.zeros(len(v), rank), along], 1) if canvas.rest else torch.zeros_like(v)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 14)])
def test_every_canvas_begins_with_its_base(shape):
    """So that "no step at all" is the beginning itself, black and white pixels included."""
    base = torch.rand(5, *shape, generator=stream(0, "base")).sub(0.3).clamp(0, 1)
    images = torch.rand(50, *shape, generator=stream(0, "images"))
    network = network_canvas(shape, width=4, seed=0, device=base.device)
    for canvas in (network, gaussian_canvas(images), PixelCanvas(shape)):
        torch.testing.assert_close(canvas.paint(base, torch.zeros(5, canvas.size)), base, rtol=0, atol=1e-6)
    assert (network.paint(base, 0.1 * torch.randn(5, network.size, generator=stream(0, "v"))) - base).abs().max() > 0.01


@pytest.mark.parametrize("prior", ["tv", "deep-image-prior"])
@pytest.mark.parametrize("loss", ["likelihood", "features"])
def test_other_priors_stay_above_the_optimum_and_below_the_mean_image(prior, loss):
    found, best = errors(OptimizationAttack(prior=prior, loss=loss, start="mean", steps=80, n_tuned=24, width=6))
    assert interval(found - best).high >= 0
    assert found.mean() < 0.85 * WORLD.prior_mse


def test_a_prior_is_worth_having():
    plain, smooth = (
        errors(OptimizationAttack(prior=prior, start="mean", steps=80, n_tuned=24))[0].mean()
        for prior in ("none", "tv")
    )
    assert smooth < 0.9 * plain


def test_started_from_a_decoder_it_is_not_worse_than_the_decoder_on_selection_images():
    decoder = DecoderAttack("conv", batch=64, plan=Plan(steps=80, lr=4e-3, ema=0.95, check_every=40))
    known = held(WORLD)
    first = decoder.fit(known, seed=0)
    attack = OptimizationAttack(prior="gaussian", start="decoder", steps=60, n_tuned=32, decoder=decoder)
    selection = some(known.selection, 32, seed=0)
    alone = mse(selection.x, first(selection.seen)).mean().item()
    health = attack.fit(known, seed=0).health
    assert health.selection_mse <= alone
    assert health.selection_mse < 0.99 * alone  # an unfinished decoder leaves something to find


def test_a_dropped_coordinate_does_not_pull():
    """Under dropout, x that explains what arrived is found; taking zeros for data is far worse."""
    client = Client(Matrix(WORLD.matrix), Dropout(rate=0.3))
    known = held(WORLD, client)
    x = WORLD.part(150, 0, "victims").images()
    seen = Seen(oracle_of(client).release(x, source=SeededSource(3)))
    error = mse(x, replace(MAP, steps=80, n_tuned=24).fit(known, seed=0)(seen)).mean()
    assert error < 0.85 * mse(x, Ridge().fit(known, seed=0)(seen)).mean()


def test_the_misfit_of_additive_noise_is_the_sum_over_releases():
    client = Client(Matrix(WORLD.matrix), Chain([Clip(radius=2.0), Gaussian(std=0.2)]))
    x = WORLD.part(5, 0).images()
    z_sent = oracle_of(client).release(WORLD.part(5, 1).images(), source=SeededSource(0), releases=3)
    channel = channel_of(client, Pairs(x, Seen(z_sent)), loss="likelihood", draws=1, seed=0)
    clipped = Clip(radius=2.0).send(client.encode(x), ())
    per_release = ((clipped - z_sent).square() / (2 * 0.2**2)).sum((0, 2))
    ours, other = channel.misfit(x, channel.hear(z_sent)), channel.misfit(x.flip(0), channel.hear(z_sent))
    wanted = per_release - ((z_sent - z_sent.mean(0)).square() / (2 * 0.2**2)).sum((0, 2))  # a constant of x
    torch.testing.assert_close(ours, wanted)
    assert not torch.allclose(ours, other)


def test_the_misfit_of_a_scattered_mechanism_averages_likelihoods_over_its_draws():
    client = Client(nn.Flatten(), Chain([Dropout(rate=0.5), Gaussian(std=0.1)]))
    channel = Channel(client, 0.1**2, draws=400, seed=0)
    x, z_sent = torch.full((1, 1, 1, 2), 0.6), torch.tensor([[[0.0, 0.65]]])
    density = [0.5 * torch.exp(-((torch.tensor([0.0, 0.6]) - z) ** 2) / 0.02).sum() for z in (0.0, 0.65)]
    wanted = -torch.stack(density).log().sum() - 2 * torch.tensor(400.0).log()  # the mean over draws as a sum
    torch.testing.assert_close(channel.misfit(x, channel.hear(z_sent))[0], wanted, atol=0.3, rtol=0)


def test_doubt_common_to_all_releases_counts_once_also_where_each_release_counts():
    """With dropout that drops nothing, the releases say what their mean does, whose variance is s²/T + e."""
    z_sent = oracle_of(WORLD.client()).release(WORLD.part(5, 1).images(), source=SeededSource(0), releases=9)
    slopes = []
    for mechanism in (Gaussian(std=0.2), Chain([Dropout(rate=1e-9), Gaussian(std=0.2)])):
        channel = Channel(Client(Matrix(WORLD.matrix), mechanism), 0.2**2)
        x = WORLD.part(5, 0).images().requires_grad_()
        misfit = channel.misfit(x, channel.hear(z_sent), more=0.3)
        slopes.append(torch.autograd.grad(misfit.sum(), x)[0])
    assert slopes[0].abs().max() > 0.1
    torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-5)


def test_the_client_is_left_as_it_was():
    encoder = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten()).train()
    client = Client(encoder, Gaussian(std=0.1))
    before = {name: value.clone() for name, value in client.state_dict().items()}
    known = held(WORLD, client)
    inverter = OptimizationAttack(steps=5, n_tuned=4).fit(known, seed=0)
    inverter(Seen(oracle_of(client).release(WORLD.part(3, 1).images(), source=SeededSource(0))))
    assert all(torch.equal(value, before[name]) for name, value in client.state_dict().items())
    assert all(weight.grad is None and weight.requires_grad for weight in client.parameters())
    assert client.training and encoder[1].training  # noqa: PT018


def test_gaussian_coordinates_are_standard_normal():
    x = WORLD.part(3000, 0, "canvas").images()
    canvas = gaussian_canvas(x - x.mean(0))
    assert canvas.size == 64
    drawn = canvas.paint(torch.zeros(20_000, 1, 8, 8), torch.randn(20_000, 64, generator=stream(0))).flatten(1)
    gap = torch.cov(drawn.T) - WORLD.covariance.float()
    assert gap.norm() < 0.15 * WORLD.covariance.norm()


def test_few_images_leave_directions_that_are_all_alike():
    x = WORLD.part(40, 0, "canvas").images()
    canvas = gaussian_canvas(x - x.mean(0))
    assert len(canvas.std) == 10
    assert canvas.size == 10 + 64
    drawn = canvas.paint(torch.zeros(5000, 1, 8, 8), torch.randn(5000, canvas.size, generator=stream(0)))
    assert drawn.var(0).mean().item() == pytest.approx(x.var(0).mean().item(), rel=0.1)


def test_total_variation_is_the_loop_s():
    x = torch.rand(2, 2, 3, 4, generator=stream(0))
    wanted = torch.zeros(2)
    for n, c, i, j in torch.cartesian_prod(*map(torch.arange, x.shape)).tolist():
        down = x[n, c, i + 1, j] - x[n, c, i, j] if i < 2 else 0.0
        right = x[n, c, i, j + 1] - x[n, c, i, j] if j < 3 else 0.0
        wanted[n] += (down**2 + right**2 + 1e-6) ** 0.5
    torch.testing.assert_close(total_variation(x), wanted)
    assert (PixelCanvas((2, 3, 4)).settle(x, torch.full((2, 24), 5.0)).reshape(x.shape) + x).max() <= 1


def test_untrained_networks_of_one_batch_are_networks_each_of_its_own():
    network = Untrained((3, 10, 8), width=4)
    rng = stream(0, "weights")
    weights, seed_map = torch.stack([network.draw(rng) for _ in range(3)]), network.draw_input(rng)
    painted = network(seed_map, weights)
    assert painted.shape == (3, 3, 10, 8)
    for one, of_it in zip(painted, weights, strict=True):
        h = seed_map
        for i, (n_in, n_out) in enumerate(network.layers):
            h = F.interpolate(h, size=network.sizes[min(i // 2, 2)], mode="bilinear", align_corners=False)
            layer, of_it = of_it[: n_out * (9 * n_in + 1)].reshape(n_out, -1), of_it[n_out * (9 * n_in + 1) :]
            h = F.conv2d(h, layer[:, :-1].reshape(n_out, n_in, 3, 3), layer[:, -1], padding=1)
            h = F.leaky_relu(F.instance_norm(h), 0.1) if i < len(network.layers) - 1 else h
        torch.testing.assert_close(one, h[0], atol=1e-5, rtol=1e-4)


def test_every_image_starts_from_the_same_network():
    canvas = network_canvas((1, 8, 8), width=4, seed=0, device=torch.device("cpu"))
    base = torch.full((2, 1, 8, 8), 0.3)
    one, two = canvas.paint(base, torch.zeros(2, canvas.size))
    assert torch.equal(one, two)
    assert (one - 0.3).abs().mean() < 0.1


def test_answers_are_not_searched_twice(tmp_path):
    known = held(WORLD)
    seen = Seen(oracle_of(WORLD.client()).release(WORLD.part(4, 1).images(), source=SeededSource(0)))
    attack, state = OptimizationAttack(steps=5, n_tuned=4), tmp_path / "trial.fit"
    checks: list[Check] = []
    first = attack.fit(known, seed=0, state=state, watch=checks.append)(seen)
    assert checks[-1].score == attack.fit(known, seed=0).health.selection_mse
    again = attack.fit(known, seed=0, state=state)
    again._inverter = None  # type: ignore[attr-defined]  # whoever asks it fails
    assert torch.equal(again(seen), first)
    with pytest.raises(TypeError):
        again(Seen(seen.z_sent + 1))
    (answer,) = tmp_path.glob("*.answer")
    answer.write_bytes(answer.read_bytes()[:-1])
    assert torch.equal(attack.fit(known, seed=0, state=state)(seen), first)  # a damaged answer is found anew
    assert all(path.name.startswith("trial.fit") for path in tmp_path.iterdir())  # gone with the trial


def test_whoever_watches_can_end_it_among_the_victims_and_it_goes_on_there(tmp_path, monkeypatch):
    monkeypatch.setattr(refinement, "CHUNK", {"cpu": 3})
    known, state = held(WORLD), tmp_path / "trial.fit"
    seen = Seen(oracle_of(WORLD.client()).release(WORLD.part(7, 1).images(), source=SeededSource(0)))
    attack = OptimizationAttack(prior="deep-image-prior", width=4, start="mean", steps=150, n_tuned=4)
    wanted = attack.fit(known, seed=0)
    checks: list[Check] = []
    most = 10_000

    def watch(check: Check) -> None:
        checks.append(check)
        if len(checks) >= most:
            raise KeyboardInterrupt

    inverter = attack.fit(known, seed=0, watch=watch, state=state)
    most = (fitted := len(checks)) + 2  # at least one word about each piece
    with pytest.raises(KeyboardInterrupt):
        inverter(seen)
    assert len(list(tmp_path.glob("*.answer"))) == (1 if wanted.choice.stop < 100 else 0)
    most, fitted = 10_000, len(checks)
    monkeypatch.setattr(refinement, "mse", None)  # what was chosen is not tried again
    resumed = attack.fit(known, seed=0, watch=watch, state=state)
    assert resumed.health == wanted.health
    assert len(checks) == fitted + 1
    assert torch.equal(resumed(seen), wanted(seen))
    assert len(list(tmp_path.glob("*.answer"))) == 3


def at_once(canvas: Canvas, channel: Channel, side: int, releases: int = 1) -> int:
    """How many images of this side are searched together on a GPU; the client sends 16 numbers."""
    begin = Begin(torch.zeros(1, 3, side, side), None)
    search = Search(Descent(channel, canvas, 5, 0.1), begin, lambda seen: torch.zeros(1, canvas.size))
    return search.inputs_at_once(Seen(torch.zeros(releases, 2, 16)))


def test_fewer_are_searched_at_once_where_each_takes_more_memory(monkeypatch):
    monkeypatch.setattr(refinement, "CHUNK", {"cpu": refinement.CHUNK["cuda"]})
    hidden = Client(nn.Flatten(), Chain([Dropout(rate=0.5), Gaussian(std=1.0)]))
    plain, dropped = Channel(WORLD.client(), 1.0), Channel(hidden, 1.0, draws=8)
    sides = (28, 32, 64, 128, 512)
    assert [at_once(PixelCanvas((3, side, side)), plain, side) for side in sides] == [1000, 1000, 1000, 250, 15]
    widths = {width: network_canvas((3, 64, 64), width=width, seed=0, device=torch.device("cpu")) for width in (24, 64)}
    assert at_once(widths[24], plain, 64) == 1000
    wide = at_once(widths[64], plain, 64)
    assert 300 < wide < 500
    assert 4 * wide * widths[64].n_held == pytest.approx(20e9, rel=0.01)
    pixels = PixelCanvas((3, 32, 32))
    monkeypatch.setattr(refinement, "HELD", 1000 * (pixels.n_held + 8 * 4 * 16))
    assert [at_once(pixels, dropped, 32, releases) for releases in (1, 16, 100)] == [1000, 765, 331]
    assert at_once(pixels, plain, 32, 16) == 1000  # without scatter the mean of releases says it all
    monkeypatch.setattr(refinement, "HELD", 1)
    assert at_once(pixels, plain, 32) == 1


@pytest.mark.parametrize("prior", ["gaussian", "tv"])
def test_candidates_are_tried_on_as_many_images_at_once_as_memory_allows(prior, monkeypatch):
    attack = OptimizationAttack(prior=prior, steps=6, n_tuned=16)
    whole = attack.fit(held(WORLD), seed=0).health
    begun, run = [], Descent.run
    monkeypatch.setattr(refinement, "CHUNK", {"cpu": 12})
    monkeypatch.setattr(
        Descent,
        "run",
        lambda self, start, base, *more, **options: begun.append(len(base)) or run(self, start, base, *more, **options),
    )
    pieces = attack.fit(held(WORLD), seed=0).health
    assert len(begun) > 1
    assert max(begun) <= 12
    assert pieces.chosen == whole.chosen
    assert pieces.selection_mse == pytest.approx(whole.selection_mse, rel=1e-4)


@pytest.mark.parametrize(("side", "width"), [(16, 8), (33, 16), (32, 24)])
def test_what_a_network_s_slope_holds_is_counted(side, width):
    """All that autograd keeps, and less than as much again for the way back."""
    canvas, n = network_canvas((3, side, side), width=width, seed=0, device=torch.device("cpu")), 3
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage
        return tensor

    v = torch.zeros(n, canvas.size, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        canvas.paint(torch.full((n, 3, side, side), 0.5), v)
    numbers = sum(storage.nbytes() for storage in kept.values()) / 4 / n
    assert 0.5 * canvas.network.n_held < numbers < canvas.n_held


@pytest.mark.parametrize("steps", [6, 4000])
def test_a_search_is_no_more_finished_than_the_decoder_it_starts_from(steps):
    plan = Plan(steps=steps, lr=2e-3, check_every=2, patience=3, min_gain=0.2)
    decoder = DecoderAttack("conv", batch=32, plan=plan)
    known = held(WORLD)
    attack = OptimizationAttack(prior="gaussian", start="decoder", steps=120, n_tuned=4, decoder=decoder)  # enough
    found, first = attack.fit(known, seed=0).health, decoder.fit(known, seed=0).health
    assert found.still_falling is first.still_falling is (steps == 6)
    assert found.train_mse == first.train_mse
    assert found.steps >= first.steps


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps must be"),
        ({"lr": -1.0}, "lr must be"),
        ({"start": "decoder", "decoder": DecoderAttack("conv", told="label")}, "told nothing"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        OptimizationAttack(**settings)
