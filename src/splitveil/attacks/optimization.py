"""Search for an image that the client would have sent as what was seen.

    x̂ = argmin  −log p(z_sent | x̂) + w · prior(x̂)          over pixels, whitened coordinates or a network's weights

`loss="likelihood"` weighs the misfit by the mechanism's own noise, `"features"` by the spread of the features. The
weight w, and after how many steps to stop, are chosen on selection images: every candidate of every image is a row of
one batch, and how far to follow it (`refinement.py`): on selection images it is never worse than where it starts.

A Gaussian prior is about the mean image, and an affine guess only where the search begins: about the guess, which has
heard what was seen, it would hear that twice. About a decoder's picture it is all the same, with the covariance of the
decoder's errors: a Gaussian about the mean image knows far less than the decoder does.
"""

from dataclasses import dataclass, field
from typing import Literal, final

import torch

from splitveil.attacks.averaging import Averaged
from splitveil.attacks.base import Attack, Course, Inverter, Need
from splitveil.attacks.canvas import Canvas, GaussianCanvas, PixelCanvas, gaussian_canvas, network_canvas
from splitveil.attacks.channel import Loss, channel_of
from splitveil.attacks.decoder import DecoderAttack, usual_decoder
from splitveil.attacks.descent import Descent
from splitveil.attacks.keeping import keeping
from splitveil.attacks.knowledge import Knowledge
from splitveil.attacks.refinement import Begin, Candidates, Search, some, tune
from splitveil.attacks.ridge import Ridge
from splitveil.check import UsageError, at_least, one_of, positive
from splitveil.randomness import SeededSource
from splitveil.types import Images

Start = Literal["mean", "noise", "affine", "decoder"]
Prior = Literal["tv", "gaussian", "deep-image-prior", "none"]

N_OWN = 2000  # auxiliary images that units, means and covariances are taken from
WEIGHTS: dict[Prior, tuple[float, ...]] = {
    "tv": (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    "gaussian": (0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    "deep-image-prior": (0.0,),
    "none": (0.0,),
}
RATES: dict[Prior, float] = {"tv": 0.03, "gaussian": 0.1, "deep-image-prior": 0.01, "none": 0.03}
STOPS: dict[Prior, tuple[float, ...]] = {  # shares of the steps after which it may be best to stop
    "tv": (1.0,),
    "gaussian": (1.0,),
    "deep-image-prior": (0.1, 0.2, 0.3, 0.5, 0.7, 1.0),
    "none": (0.0, 0.03, 0.1, 0.3, 1.0),
}
SHORT_OF_DECODER = (0.0, 0.1, 0.3, 1.0)  # the same, from a decoder on


@final
@dataclass(frozen=True)
class OptimizationAttack(Attack):
    """Descend −log likelihood plus a prior, for all victims at once."""

    prior: Prior = "tv"
    loss: Loss = "likelihood"
    start: Start = "affine"
    steps: int = 500
    lr: float | None = None  # None: what suits the prior
    expectation: int = 8  # draws of a mechanism that is random beside additive noise
    n_tuned: int = 64  # selection images that choose the weight and when to stop
    width: int = 24  # of the deep image prior
    decoder: DecoderAttack = field(default_factory=usual_decoder)  # that a search may start from

    def __post_init__(self) -> None:
        one_of("prior", self.prior, tuple(WEIGHTS))
        one_of("loss", self.loss, ("likelihood", "features"))
        one_of("start", self.start, ("mean", "noise", "affine", "decoder"))
        for name in ("steps", "expectation", "n_tuned", "width"):
            at_least(name, getattr(self, name), 1)
        if self.lr is not None:
            positive("lr", self.lr)
        if self.start == "decoder" and self.decoder.told != "nothing":
            raise UsageError(
                f"a search starts from a decoder told nothing, got told={self.decoder.told!r}; leave it out"
            )

    @property
    def name(self) -> str:
        if self.start == "decoder":
            return "optimization-decoder"
        words = {"tv": "tv", "gaussian": "likelihood", "deep-image-prior": "dip", "none": "plain"}
        return f"optimization-{words[self.prior]}" + "-features" * (self.loss == "features")

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({Need.PAIRS, Need.CLIENT})

    @property
    def hears_all(self) -> bool:
        return True

    def _fit(self, known: Knowledge, course: Course) -> Inverter:
        assert known.pairs is not None and known.selection is not None and known.client is not None  # noqa: PT018
        n_own = torch.arange(min(N_OWN, len(known.pairs)), device=known.pairs.device)
        own = known.pairs.draw(n_own, source=SeededSource(course.seed, "own"), augment=self.start == "decoder")
        begin = Begin(own.x.mean(0, keepdim=True), self._first(known, len(own.seen.z_sent), course))
        channel = channel_of(known.client, own, loss=self.loss, draws=self.expectation, seed=course.seed)
        is_centered = self.start == "affine" and self.prior == "gaussian"
        gaps = own.x - (begin.mean if is_centered else begin(own.seen))
        if self.start == "decoder":  # it was fitted to its own images, and errs less there
            apart = some(known.selection, N_OWN, seed=course.seed, after=self.n_tuned)
            gaps = torch.cat([gaps, apart.x - begin(apart.seen)])
        canvas = self._canvas(gaps, course.seed)
        descent = Descent(channel, canvas, self.steps, self.lr or RATES[self.prior])
        start = torch.zeros(1, canvas.size, device=own.x.device)
        if self.start == "noise":
            start = canvas.settle(begin.mean, canvas.noise(course.seed, device=own.x.device))
        search = Search(descent, begin, lambda seen: start)
        if is_centered:
            assert isinstance(canvas, GaussianCanvas)
            search = Search(descent, begin, lambda seen: canvas.whitened(begin(seen) - begin.mean), begin.mean)
        selection = some(known.selection, self.n_tuned, seed=course.seed)
        searched = tune(search, selection, self._candidates(), course)
        return keeping(searched, course.state, each=search.inputs_at_once(own.seen))

    def _first(self, known: Knowledge, releases: int, course: Course) -> Inverter | None:
        if self.start in ("mean", "noise"):
            return None
        first: Attack = self.decoder if self.start == "decoder" else Ridge()
        first = first if releases == 1 else Averaged(first, releases)
        return first.fit(known, seed=course.seed, watch=course.watch, state=course.state)

    def _canvas(self, gaps: Images, seed: int) -> Canvas:
        """`gaps` are what a start still lacks, on images of the attacker's."""
        image_shape = (gaps.shape[1], gaps.shape[2], gaps.shape[3])
        match self.prior:
            case "gaussian":
                return gaussian_canvas(gaps)
            case "deep-image-prior":
                return network_canvas(image_shape, width=self.width, seed=seed, device=gaps.device)
            case _:
                return PixelCanvas(image_shape, has_variation=self.prior == "tv")

    def _candidates(self) -> Candidates:
        """Weights, and numbers of steps."""
        stops = SHORT_OF_DECODER if self.start in ("affine", "decoder") else STOPS[self.prior]
        return WEIGHTS[self.prior], tuple(dict.fromkeys(round(share * self.steps) for share in stops))
