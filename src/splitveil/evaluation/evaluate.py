"""Every attack of a suite against one client: what it reconstructed, and when not to believe the number.

    headline = attack with the lowest mean MSE          oracle = mean over victims of min over attacks
    leak = 1 − MSE / MSE_prior                          intervals: bootstrap over victims, and over attack seeds

Attacks are handed auxiliary and selection images and the victims' z_sent. Victims' images are read here alone, to make
z_sent and to score.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from splitveil.attacks import Oracle, oracle_of
from splitveil.bounds import Bound
from splitveil.check import UsageError
from splitveil.data import ImageSet
from splitveil.evaluation.inferences import asked, judged
from splitveil.evaluation.judges import Judges
from splitveil.evaluation.play import Outcomes, Progress, Told, play
from splitveil.evaluation.result import InferenceResult, Result
from splitveil.evaluation.roles import Roles, mean_image, roles_of
from splitveil.evaluation.store import Store, client_fingerprint, head_fingerprint
from splitveil.evaluation.suite import Ground, Suite
from splitveil.evaluation.suites import suite_named
from splitveil.evaluation.summary import Context, Played, summarize
from splitveil.evaluation.trial import Scene
from splitveil.evaluation.victims import Victims

PROBES = 8  # images that randomness is tried on


def evaluate(
    client: object,
    suite: str | Suite,
    data: ImageSet | Roles,
    *,
    seeds: Sequence[int] = (0,),
    out: Path | None = None,
    undefended: Result | None = None,
    bounds: Sequence[Bound] = (),
    keep_samples: bool | None = None,
    progress: Progress | None = None,
    head: nn.Module | None = None,
    time_budget: float | None = None,
) -> Result:
    """Attack `client` (a Client, an encoder, or any function from images to features) with every attack of `suite`.

    Images move to the client's device. `undefended` is the result of the same suite on an undefended client, `bounds`
    are what no attack beats: with them two more flags can be judged. With `out`, finished trials are kept there, one
    JSON each, and not run again; the result is written there too. Samples are kept unless the images show people.
    `head` is the server's half, for attackers who hold it. After `time_budget` seconds nothing more is begun: `TimeUp`.

    Guarantees: the same client, data, suite and seeds give the same result, interrupted or not, but for times and
    memory; the client is left as it was. With `out`, a watcher or a time budget that ends it loses no more than the
    piece of victims in hand (or the search for an attack's own settings); a kill, no more than that or what a fit did
    since its last saved state: `SAVE_EVERY` seconds and up to the next check.
    """
    if not seeds or len(set(seeds)) != len(seeds):
        raise UsageError(f"seeds must be different numbers, at least one, got {list(seeds)}")
    suite = suite_named(suite) if isinstance(suite, str) else suite
    tell = Told(progress, time_budget)
    scene = _set_scene(oracle_of(client), data, suite.n_victims, keep_samples, head)
    is_random = scene.oracle.is_random(scene.roles.auxiliary.images(slice(PROBES)))
    suite = suite.on(_ground(scene, is_random))
    name = client_fingerprint(scene.oracle, scene.roles)
    scene = _with_judges(scene, suite, out)
    store = Store(
        out and out / "attacks",
        client=name,
        roles=scene.roles,
        n_victims=len(scene.victims),
        judged_by=repr(suite.recognition),
        head=head_fingerprint(head),
    )
    outcomes = play(suite, scene, store, seeds, tell)
    played = tuple(Played(trial, outcomes[trial]) for trial in suite.trials)
    prior_mse = scene.victims.prior_mse(mean_image(scene.roles.auxiliary))
    facts = (suite.name, name, scene.roles, len(scene.victims), prior_mse, is_random, tuple(seeds))
    result = summarize(played, Context(*facts, undefended=undefended, bounds=tuple(bounds)))
    result = replace(result, inferences=_inferences(suite, scene, outcomes, result.headline))
    if out is not None:
        result.save(out / suite.file)
    return result


def _set_scene(
    oracle: Oracle,
    data: ImageSet | Roles,
    n_victims: int | None,
    keep_samples: bool | None,
    head: nn.Module | None,
) -> Scene:
    roles = roles_of(data) if isinstance(data, ImageSet) else data
    if keep_samples and roles.people:
        raise UsageError(f"{roles.name} shows people: their reconstructions are not kept; leave keep_samples out")
    device = _device_of(oracle)
    roles = roles if device is None else roles.to(device)
    part = roles.victims if n_victims is None else roles.victims.take(min(n_victims, len(roles.victims)))
    keep = not roles.people if keep_samples is None else keep_samples
    return Scene(oracle, roles, Victims(part, oracle), keep, head=head)


def _with_judges(scene: Scene, suite: Suite, out: Path | None) -> Scene:
    return scene if suite.recognition is None else replace(scene, judges=Judges(suite.recognition, scene.roles, out))


def _inferences(suite: Suite, scene: Scene, outcomes: Outcomes, headline: str) -> tuple[InferenceResult, ...]:
    """What was concluded from z_sent, and what the judges saw in the reconstructions of the best attack."""
    found = [asked(each, outcomes[each], scene.roles, scene.victims.all_labels) for each in suite.inquiries]
    best = next(trial for trial in suite.trials if trial.name == headline)
    return (*found, *judged(best.name, best.threat, outcomes[best], scene.roles, scene.victims.all_labels))


def _device_of(oracle: Oracle) -> torch.device | None:
    """Where the client is; None where it cannot be told."""
    if oracle.client is None:
        return None
    return next((value.device for value in oracle.client.state_dict().values()), None)


def _ground(scene: Scene, is_random: bool) -> Ground:
    return Ground(
        has_client=scene.oracle.client is not None,
        is_random=is_random,
        has_private=scene.roles.private is not None,
        has_labels=scene.roles.n_classes is not None,
        n_auxiliary=len(scene.roles.auxiliary),
        n_selection=len(scene.roles.selection),
        has_own_labels=bool((scene.roles.auxiliary.labels >= 0).all()),
        has_head=scene.head is not None,
    )
