"""Every attack of a suite against one client: what it reconstructed, and when not to believe the number.

    headline = attack with the lowest mean MSE          oracle = mean over victims of min over attacks
    leak = 1 − MSE / MSE_prior                          intervals: bootstrap over victims, and over attack seeds

Attacks are handed auxiliary and selection images and the victims' z_sent. Victims' images are read here alone, to make
z_sent and to score.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from splitveil.attacks import Oracle, oracle_of
from splitveil.check import UsageError
from splitveil.data import ImageSet
from splitveil.evaluation.flags import BoundLike
from splitveil.evaluation.result import Result
from splitveil.evaluation.roles import Roles, mean_image, roles_of
from splitveil.evaluation.store import Store, client_fingerprint
from splitveil.evaluation.suite import Ground, Suite, Trial, suite_named
from splitveil.evaluation.summary import Context, Played, summarize
from splitveil.evaluation.trial import Outcome, Scene, run_trial
from splitveil.evaluation.victims import Victims
from splitveil.fitting import Check

PROBES = 8  # images that randomness is tried on


@dataclass(frozen=True)
class Update:
    """Where an evaluation stands: before a trial, at a check of its fit (`check`), or after it (`mse`)."""

    index: int  # of the trial and seed, from 0
    total: int
    trial: str
    seed: int
    check: Check | None = None
    mse: float | None = None
    was_stored: bool = False  # finished in an earlier evaluation


Progress = Callable[[Update], None]


def evaluate(
    client: object,
    suite: str | Suite,
    data: ImageSet | Roles,
    *,
    seeds: Sequence[int] = (0,),
    out: Path | None = None,
    undefended: Result | None = None,
    bounds: Sequence[BoundLike] = (),
    keep_samples: bool | None = None,
    progress: Progress | None = None,
) -> Result:
    """Attack `client` (a Client, an encoder, or any function from images to features) with every attack of `suite`.

    Images move to the client's device. `undefended` is the result of the same suite on an undefended client and
    `bounds` are bounds on the MSE: with them two more flags can be judged. With `out`, finished trials are kept there,
    one JSON each, and not run again; the result is written there too. Samples are kept unless the images show people.

    Guarantees: the same client, data, suite and seeds give the same result, interrupted or not, but for times and
    memory; an interruption loses less than half a minute of work; the client is left as it was.
    """
    if not seeds or len(set(seeds)) != len(seeds):
        raise UsageError(f"seeds must be different numbers, at least one, got {list(seeds)}")
    suite = suite_named(suite) if isinstance(suite, str) else suite
    scene = _set_scene(oracle_of(client), data, suite.n_victims, keep_samples)
    is_random = scene.oracle.is_random(scene.roles.auxiliary.images(slice(PROBES)))
    suite = suite.on(_ground(scene, is_random))
    name = client_fingerprint(scene.oracle, scene.roles)
    store = Store(out and out / "attacks", client=name, roles=scene.roles, n_victims=len(scene.victims))
    played = _play(suite, scene, store, seeds, progress)
    prior_mse = scene.victims.prior_mse(mean_image(scene.roles.auxiliary))
    facts = (suite.name, name, scene.roles, len(scene.victims), prior_mse, is_random, tuple(seeds))
    result = summarize(played, Context(*facts, undefended=undefended, bounds=tuple(bounds)))
    if out is not None:
        result.save(out / "result.json")
    return result


def _set_scene(oracle: Oracle, data: ImageSet | Roles, n_victims: int | None, keep_samples: bool | None) -> Scene:
    roles = roles_of(data) if isinstance(data, ImageSet) else data
    if keep_samples and roles.people:
        raise UsageError(f"{roles.name} shows people: their reconstructions are not kept; leave keep_samples out")
    device = _device_of(oracle)
    roles = roles if device is None else roles.to(device)
    part = roles.victims if n_victims is None else roles.victims.take(min(n_victims, len(roles.victims)))
    keep = not roles.people if keep_samples is None else keep_samples
    return Scene(oracle, roles, Victims(part, oracle), keep)


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
    )


def _play(
    suite: Suite, scene: Scene, store: Store, seeds: Sequence[int], progress: Progress | None
) -> tuple[Played, ...]:
    """Run what is not stored, all attacks of one seed before the next seed."""
    say = progress or _silent
    order = [(seed, trial) for seed in seeds for trial in suite.trials]
    outcomes: dict[Trial, list[Outcome]] = {trial: [] for trial in suite.trials}
    for i, (seed, trial) in enumerate(order):
        outcome = store.get(trial, seed)
        was_stored = outcome is not None
        if outcome is None:
            say(Update(i, len(order), trial.name, seed))
            watch = _watch(say, i, len(order), trial, seed)
            outcome = run_trial(trial, scene, seed=seed, watch=watch, state=store.state(trial, seed))
            store.put(trial, seed, outcome)
        outcomes[trial].append(outcome)
        mse = outcome.scores["mse"].mean().item()
        say(Update(i, len(order), trial.name, seed, mse=mse, was_stored=was_stored))
    return tuple(Played(trial, tuple(done)) for trial, done in outcomes.items())


def _watch(say: Progress, index: int, total: int, trial: Trial, seed: int) -> Callable[[Check], None]:
    return lambda check: say(Update(index, total, trial.name, seed, check=check))


def _silent(update: Update) -> None:
    """Nobody watches."""
