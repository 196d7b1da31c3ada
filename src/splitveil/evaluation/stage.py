"""What an evaluation is played on: the suite as it fits here, the images, the client, and where trials are kept."""

from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from splitveil.attacks import Oracle, oracle_of
from splitveil.check import UsageError
from splitveil.data import ImageSet
from splitveil.evaluation.fingerprints import client_fingerprint, head_fingerprint
from splitveil.evaluation.judges import Judges
from splitveil.evaluation.rehearsal import rehearse
from splitveil.evaluation.result import suite_of
from splitveil.evaluation.roles import Roles, roles_of
from splitveil.evaluation.store import Store
from splitveil.evaluation.suite import Ground, NotPlayed, Suite
from splitveil.evaluation.suites import suite_named
from splitveil.evaluation.trial import Scene
from splitveil.evaluation.victims import Victims
from splitveil.split import device_of

PROBES = 8  # images that a client, and its randomness, is tried on


@dataclass(frozen=True)
class Stage:
    """Everything that is settled before the first trial."""

    suite: Suite
    scene: Scene
    store: Store
    client: str  # its fingerprint
    is_random: bool
    not_played: tuple[NotPlayed, ...]


def set_stage(
    client: object,
    suite: str | Suite,
    data: ImageSet | Roles,
    *,
    out: Path | None,
    keep_samples: bool | None,
    head: nn.Module | None,
    client_name: str | None,
) -> Stage:
    """Move the images to the client, fit the suite to what is there, and open the store."""
    suite = suite_named(suite) if isinstance(suite, str) else suite
    _refuse_another(out, suite)
    scene = _set_scene(oracle_of(client), data, suite.n_victims, keep_samples, head)
    probes = scene.roles.auxiliary.images(slice(PROBES))
    rehearse(scene.oracle, probes)
    is_random = scene.oracle.is_random(probes)
    ground = _ground(scene, is_random)
    not_played, suite = suite.left_out(ground), suite.on(ground)
    name = client_fingerprint(scene.oracle, scene.roles, name=client_name)
    if suite.recognition is not None:
        scene = replace(scene, judges=Judges(suite.recognition, scene.roles, out))
    store = Store(
        out and out / "attacks",
        client=name,
        roles=scene.roles,
        n_victims=len(scene.victims),
        judged_by=repr(suite.recognition),
        head=head_fingerprint(head),
        with_samples=keep_samples is True,
    )
    return Stage(suite, scene, store, name, is_random, not_played)


def _refuse_another(out: Path | None, suite: Suite) -> None:
    """Refuse a folder whose result is that of another suite: it would be lost."""
    place = None if out is None else out / suite.file
    kept = None if place is None else suite_of(place)
    if kept not in (None, suite.name):
        own = f"give suite {suite.name!r} a folder of its own, or move that result away"
        raise UsageError(f"{place} is the result of suite {kept!r}; {own}")


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
    device = None if oracle.client is None else device_of(oracle.client)
    roles = roles if device is None else roles.to(device)
    part = roles.victims if n_victims is None else roles.victims.take(min(n_victims, len(roles.victims)))
    keep = not roles.people if keep_samples is None else keep_samples
    return Scene(oracle, roles, Victims(part, oracle), keep, head=head)


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
        n_private=0 if scene.roles.private is None else len(scene.roles.private),
        image_shape=scene.victims.image_shape,
    )
