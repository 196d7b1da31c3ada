"""Every attack of a suite against one client: what it reconstructed, and when not to believe the number.

    headline = attack with the lowest mean MSE          oracle = mean over victims of min over attacks
    leak = 1 − MSE / MSE_prior                          intervals: bootstrap over victims, and over attack seeds

Attacks are handed auxiliary and selection images and the victims' z_sent. Victims' images are read here alone, to make
z_sent and to score.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import nn

from splitveil.bounds import Bound
from splitveil.check import UsageError
from splitveil.data import ImageSet
from splitveil.evaluation.inferences import asked, judged
from splitveil.evaluation.play import Outcomes, Progress, Reporter, play
from splitveil.evaluation.rehearsal import different, why_strange
from splitveil.evaluation.result import InferenceResult, Result
from splitveil.evaluation.roles import Roles, mean_image
from splitveil.evaluation.stage import set_stage
from splitveil.evaluation.suite import Suite
from splitveil.evaluation.summary import Context, Played, summarize
from splitveil.evaluation.trial import Scene
from splitveil.pausing import pausing


def evaluate(
    client: object,
    suite: str | Suite,
    data: ImageSet | Roles,
    *,
    seeds: Sequence[int] = (0,),
    out: Path | str | None = None,
    undefended: Result | None = None,
    bounds: Sequence[Bound] = (),
    keep_samples: bool | None = None,
    progress: Progress | None = None,
    head: nn.Module | None = None,
    time_budget: float | None = None,
    keep_priors: bool = False,
    client_name: str | None = None,
) -> Result:
    """Attack `client` (a Client, an encoder, or any function from images to features) with every attack of `suite`.

    Images move to the client's device. `undefended` is the result of the same suite on an undefended client and the
    same images, `bounds` are what no attack beats: with them two more flags can be judged. With `out`, finished trials
    are kept there, one JSON each, and not run again; the result is written there too. Samples are kept unless the
    images show people; with `keep_samples=True` a trial that was finished without them is run again.
    `head` is the server's half, for attackers who hold it. After `time_budget` seconds nothing more is begun: `TimeUp`.
    Priors that attacks have learned from auxiliary images are shared among the trials in `out` until a whole suite is
    finished; `keep_priors` leaves them there for the next evaluation. A function whose answers are random cannot be
    told from another: what an earlier call finished is taken only if both calls say the same `client_name`.

    Guarantees: the same client, data, suite and seeds give the same result, interrupted or not, but for times and
    memory; the client is left as it was. With `out`, a watcher, a time budget or who is `pausing` it loses no more than
    the piece of victims in hand (or the search for an attack's own settings); a kill, no more than that or what a fit
    did since its last saved state: `SAVE_EVERY` seconds and up to the next check.
    """
    seeds, out = different(seeds), None if out is None else Path(out)
    tell = Reporter(progress, time_budget)
    stage = set_stage(client, suite, data, out=out, keep_samples=keep_samples, head=head, client_name=client_name)
    strange = None if undefended is None else why_strange(undefended, stage.scene.roles, stage.client)
    if strange is not None:
        raise UsageError(f"undefended {strange}")
    suite, scene = stage.suite, stage.scene
    with pausing(tell.pause):
        outcomes = play(suite, scene, stage.store, seeds, tell)
    played = tuple(Played(trial, outcomes[trial]) for trial in suite.trials)
    prior_mse = scene.victims.prior_mse(mean_image(scene.roles.auxiliary))
    facts = (suite.name, stage.client, scene.roles, len(scene.victims), prior_mse, stage.is_random, tuple(seeds))
    result = summarize(played, Context(*facts, undefended=undefended, bounds=tuple(bounds)))
    inferences = _inferences(suite, scene, outcomes, result.headline)
    result = replace(result, inferences=inferences, not_played=stage.not_played)
    if out is not None:
        result.save(out / suite.file)
    if not (keep_priors or suite.is_part):  # the rest of a suite may need them yet
        stage.store.forget_priors()
    return result


def _inferences(suite: Suite, scene: Scene, outcomes: Outcomes, headline: str) -> tuple[InferenceResult, ...]:
    """What was concluded from z_sent, and what the judges saw in the reconstructions of the best attack."""
    found = [asked(each, outcomes[each], scene.roles, scene.victims.all_labels) for each in suite.inquiries]
    best = next(trial for trial in suite.trials if trial.name == headline)
    return (*found, *judged(best.name, best.threat, outcomes[best], scene, scene.victims.all_labels))
