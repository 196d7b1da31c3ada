"""A generator as prior: images that a network trained on auxiliary images can paint.

    latent     train G for D(G(u), x) + ½ Ŵ² on auxiliary images;  û = argmin −log p(z_sent | G(u)) + w ‖u‖²/2;
               then move on from G(û), mixed with an affine guess as far as each is worth it, under a Gaussian with
               the covariance of what that lacks
    decoder    train G(z_sent) for ‖x − G‖² + share · (−C(G)): painted from what was seen, and hard to tell from images

D is the energy distance at three scales, Ŵ = E C(x) − E C(G(u)) what a Wasserstein critic C tells apart, in units of
the images' spread. It is squared, so that a critic which tells nothing pulls at nothing: charged with −C(G) alone, as
usual, a generator that begins close to the images is pulled away from them faster than the critic learns.

The search for û begins where an affine map sends z_sent: fitted on pairs (u, z_sent of G(u)), which cost nothing. It is
tried from several places; the one whose image explains best what was seen is kept. Weights of priors and numbers of
steps are chosen on selection images.

Sources: Gulrajani et al. 2017; Bora et al. 2017 (latent search); Dhar et al. 2018 (deviations from a generator).
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, final

import torch
from torch import Tensor, nn

from splitveil.attacks.adversarial import Duel, distance_over_scales
from splitveil.attacks.base import Attack, Course, Health, Inverter, Need
from splitveil.attacks.canvas import gaussian_canvas
from splitveil.attacks.channel import Channel, channel_of
from splitveil.attacks.descent import Descent
from splitveil.attacks.keeping import beside, keeping, learned_once, shared
from splitveil.attacks.knowledge import Knowledge
from splitveil.attacks.latent import Calibrated, LatentCanvas, Restarted, fit_affine, guess_latent
from splitveil.attacks.pairs import Pairs, Seen
from splitveil.attacks.refinement import Begin, Search, Searched, some, tune
from splitveil.check import at_least, one_of, positive
from splitveil.fitting import Fitted, Plan, Shuffled, fit
from splitveil.metrics import mse
from splitveil.networks.decoders import RUNGS, Decoder, Rung
from splitveil.networks.generator import Critic, Generator
from splitveil.randomness import SeededSource, derive
from splitveil.types import Images

Mode = Literal["latent", "decoder"]

N_OWN = 500  # auxiliary images for units, for what a generator lacks, and for scores
LEAST_APART = 50  # pairs without which a weighing takes images that were fitted
N_COMPONENTS = 2000  # auxiliary images for the components that a generator begins with
CHUNK = 250  # inputs painted at once
WEIGHTS = (0.3, 3.0, 30.0, 300.0, 3000.0)  # of ‖u‖²/2: a generator that cannot paint the image wants a heavier one
MOVED_WEIGHTS = (0.3, 1.0, 3.0, 10.0)  # of what is added to its image
STOPS = (0.0, 0.3, 1.0)
RATE, MOVED_RATE = 0.05, 0.1  # of the search over u, and of what is added
SHARE = 0.2  # of the pull of ‖x − G‖² that the critic's may have
SMALL = 0.1  # added to a distance, which may be zero: a fit that gains less than a hundredth of this is flat
SCATTER = 0.5  # how far apart searches begin, in standard deviations of u


PLANS: dict[Mode, Plan] = {
    "latent": Plan(steps=4000, lr=3e-4, warmup=200, ema=0.999, check_every=250, patience=8),
    "decoder": Plan(steps=5000, lr=2e-3, ema=0.998, check_every=100),
}


@final
@dataclass(frozen=True)
class GeneratorAttack(Attack):
    """A generator trained against a critic, searched (`latent`) or fed with what was seen (`decoder`)."""

    mode: Mode = "latent"
    latent: int = 128
    width: int = 64
    batch: int = 256
    rounds: int = 3  # turns of the critic for each of a generator that is to be searched
    plan: Plan | None = None  # None: what suits the mode
    critic_lr: float = 4e-4  # faster than the generator's: a critic that lags sends it astray
    steps: int = 300  # of each search
    restarts: int = 3
    expectation: int = 8  # draws of a mechanism that is random beside additive noise
    n_tuned: int = 64
    rung: Rung = "residual"  # the network that is fed

    def __post_init__(self) -> None:
        one_of("mode", self.mode, ("latent", "decoder"))
        one_of("rung", self.rung, RUNGS)
        for name in ("latent", "width", "rounds", "steps", "restarts", "expectation", "n_tuned"):
            at_least(name, getattr(self, name), 1)
        at_least("batch", self.batch, 2)
        positive("critic_lr", self.critic_lr)

    @property
    def name(self) -> str:
        return f"generator-{self.mode}"

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({Need.PAIRS, Need.CLIENT} if self.mode == "latent" else {Need.PAIRS})

    @property
    def hears_all(self) -> bool:
        return True

    def _fit(self, known: Knowledge, course: Course) -> Inverter:
        return self._fed(known, course) if self.mode == "decoder" else self._searched(known, course)

    def prior(self, known: Knowledge, course: Course) -> Fitted:
        """What `learn` learns, scored on selection images."""
        assert known.selection is not None
        return self.learn(known, some(known.selection, N_OWN, seed=course.seed).x, course)

    def learn(self, known: Knowledge, real: Images, course: Course) -> Fitted:
        """A generator of images like the auxiliary ones, the same for every client: beside the fit, it is fitted once.

        It is scored by its energy distance to `real` over three scales. It sees images as they are: views that are
        shifted would be what it learns to paint.
        """
        part, seed, device = known.auxiliary, course.seed, real.device
        image_shape = part.image_shape
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(seed, "generator"))
            generator = Generator(image_shape, latent=self.latent, width=self.width)
            critic = Critic(image_shape, width=self.width)
        duel = Duel(generator, critic, lr=self.critic_lr).to(device)
        own = part.images(slice(min(len(part), N_COMPONENTS)))
        generator.calibrate(own)
        duel.calibrate(own)
        order = Shuffled(len(part), size=self.batch, seed=seed, device=device)
        dreamed = SeededSource(seed, "score").normal((len(real), self.latent), device=device)

        def loss(network: nn.Module, step: int) -> Tensor:
            assert isinstance(network, Duel)
            source = SeededSource(seed, "duel", step)
            for turn in range(self.rounds):
                x = part.images(order(self.rounds * step + turn))
                network.teach(x, network(source.normal((len(x), self.latent), device=device)), source)
            painted = network(source.normal((len(x), self.latent), device=device))
            return distance_over_scales(painted, x) + network.gap(x, painted).clamp_min(0).square() / 2

        score = lambda network: SMALL + distance_over_scales(network(dreamed), real)  # noqa: E731
        plan = replace(self.plan or PLANS["latent"], momentum=0.0)
        facts = ("scales", self.latent, self.width, self.batch, self.rounds, plan, self.critic_lr, seed)
        place = shared(course.state, kind="generator", facts=facts, learned_from=part, scored_on=real)
        plan = plan.suited(channels_last=device.type == "cuda")
        run = partial(fit, duel, loss=loss, score=score, plan=plan, progress=course.watch)
        return learned_once(course.state, place, lambda state: run(state=state))

    def _searched(self, known: Knowledge, course: Course) -> Inverter:
        assert known.pairs is not None and known.selection is not None and known.client is not None  # noqa: PT018
        seed = course.seed
        own = some(known.pairs, N_OWN, seed=derive(seed, "own"))
        selection = some(known.selection, self.n_tuned, seed=seed)
        fitted = self.prior(known, course)
        channel = channel_of(known.client, own, loss="likelihood", draws=self.expectation, seed=seed)
        searched = self._latent_search(fitted, channel, own, selection, course)
        latent = keeping(searched, beside(course.state, "latent"), each=searched.inputs_at_once(own.seen))
        found = Calibrated([latent, fit_affine(known, len(own.seen.z_sent), seed)], self._apart(known, own, seed))
        canvas = gaussian_canvas(found.gaps)
        still = torch.zeros(1, canvas.size, device=own.x.device)
        begin = Begin(own.x.mean(0, keepdim=True), found)
        search = Search(Descent(channel, canvas, self.steps, MOVED_RATE), begin, lambda seen: still)
        stops = tuple(dict.fromkeys(round(share * self.steps) for share in STOPS))
        moved = tune(search, selection, (MOVED_WEIGHTS, stops), course)
        return keeping(moved, course.state, each=search.inputs_at_once(own.seen))

    def _apart(self, known: Knowledge, own: Pairs, seed: int) -> Pairs:
        """Pairs that nothing was fitted to or chosen on: an affine map looks too good on those it was fitted to."""
        assert known.selection is not None
        apart = some(known.selection, N_OWN, seed=seed, after=self.n_tuned)
        return apart if len(apart.x) >= LEAST_APART else own

    def _latent_search(
        self, fitted: Fitted, channel: Channel, own: Pairs, selection: Pairs, course: Course
    ) -> Restarted:
        network = fitted.network
        guess = guess_latent(network, self.latent, channel, seed=course.seed)
        begin = Begin(own.x.mean(0, keepdim=True), None)
        source = SeededSource(course.seed, "restarts")
        apart = SCATTER * source.normal((self.restarts, self.latent), device=own.x.device)
        apart[0] = 0
        descent = Descent(channel, LatentCanvas(network, self.latent), self.steps, RATE)
        searches = [Search(descent, begin, replace(guess, shift=shift)) for shift in apart]
        tuned = tune(searches[0], selection, (WEIGHTS, (self.steps,)), course, name="latent.chosen", is_followed=False)
        is_falling = fitted.still_falling or tuned.health.still_falling
        health = replace(tuned.health, steps=fitted.checks[-1].step, still_falling=is_falling)
        chosen = (tuned.choice, health, course.watch)
        return Restarted([Searched(each, *chosen) for each in searches], channel)

    def _fed(self, known: Knowledge, course: Course) -> Inverter:
        assert known.pairs is not None and known.selection is not None  # noqa: PT018
        pairs, seed = known.pairs, course.seed
        on_gpu = pairs.device.type == "cuda"
        own = pairs.first(N_OWN, source=SeededSource(seed, "own"))
        selection = known.selection.first(N_OWN, source=SeededSource(seed, "selection"))
        duel = self._feeder(own, seed)
        order = Shuffled(len(pairs), size=self.batch, seed=seed, device=pairs.device)

        def loss(network: nn.Module, step: int) -> Tensor:
            assert isinstance(network, Duel)
            source = SeededSource(seed, "duel", step)
            drawn = pairs.draw(order(step), source=source, augment=True)
            painted = network(drawn.seen.z_sent.mean(0))
            network.teach(drawn.x, painted, source)
            error = mse(drawn.x, painted).mean()
            pull = 2 * (error.detach() / painted[0].numel()).sqrt()  # length of the error's slope, per image
            charge: Tensor = error - SHARE * pull * network.judge(painted).mean()
            return charge

        fitted = fit(
            duel,
            loss=loss,
            score=lambda network: mse(selection.x, _feed(network, selection.seen)).mean(),
            plan=(self.plan or PLANS["decoder"]).suited(bfloat16=on_gpu, channels_last=on_gpu),
            progress=course.watch,
            state=course.state,
        )
        return _Fed(fitted, mse(own.x, _feed(fitted.network, own.seen)).mean().item())

    def _feeder(self, own: Pairs, seed: int) -> Duel:
        """A decoder and a critic, both untrained, on the pairs' device."""
        image_shape = (own.x.shape[1], own.x.shape[2], own.x.shape[3])
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(seed, "feeder", self.rung))
            generator = Decoder(self.rung, feature_shape=tuple(own.seen.z_sent.shape[2:]), image_shape=image_shape)
            duel = Duel(generator, Critic(image_shape, width=self.width), lr=self.critic_lr).to(own.x.device)
        generator.calibrate(own.x, own.seen.z_sent.mean(0))
        duel.calibrate(own.x)
        return duel


def _feed(network: nn.Module, seen: Seen) -> Images:
    z_sent = seen.z_sent.mean(0)
    with torch.no_grad():
        return torch.cat([network(z_sent[i : i + CHUNK]) for i in range(0, len(z_sent), CHUNK)])


@final
class _Fed(Inverter):
    def __init__(self, fitted: Fitted, train_mse: float) -> None:
        self._network = fitted.network
        self._health = Health(train_mse, fitted.best.score, fitted.checks[-1].step, fitted.still_falling)

    @property
    def health(self) -> Health:
        return self._health

    def __call__(self, seen: Seen) -> Images:
        return _feed(self._network, seen)
