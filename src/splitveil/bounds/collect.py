"""All bounds that apply to a client, and why the others do not."""

from collections.abc import Sequence

from splitveil.bounds import local_dp, van_trees
from splitveil.bounds.base import Bound
from splitveil.bounds.channel import channel_of, obstacle, roughness
from splitveil.bounds.information import information
from splitveil.bounds.jacobian import Probing
from splitveil.bounds.parts import Parts, classes_of, encoded, parts_of
from splitveil.bounds.two_point import too_few, two_point
from splitveil.data import ImageSet
from splitveil.split import Client, device_of, is_noisy
from splitveil.split.stirring import PROBES


def bounds_of(
    client: Client, data: ImageSet | Parts, *, releases: int | Sequence[int] = 1, seed: int = 0
) -> tuple[Bound, ...]:
    """Every bound that applies to `releases` of one input, or to each of several numbers of them.

    Images move to the client's device. Guarantees: the same client, images and seed give the same bounds; the client is
    left as it was; empty for a client without noise, of which `missing` says why.
    """
    parts = _placed(client, data)
    counts = (releases,) if isinstance(releases, int) else tuple(releases)
    found: list[Bound] = []
    if obstacle(client.mechanism) is None and not _is_stirred(client, parts):
        known = encoded(channel_of(client), parts)
        found += [bound for count in counts for bound in information(known, releases=count, seed=seed)]
        if too_few(known.read.classes) is None:
            found += [two_point(known, parts.read, releases=count, seed=seed) for count in counts]
        found += _van_trees(client, parts, counts, seed)
    if local_dp.obstacle(client.mechanism) is None:
        found += [bound for count in counts for bound in local_dp.local_dp(client.mechanism, releases=count)]
    return tuple(found)


def missing(client: Client, data: ImageSet | Parts | None = None, *, seed: int = 0) -> tuple[str, ...]:
    """One line for each kind of bound that this client does not have; without `data`, as far as its mechanism shows."""
    mechanism = client.mechanism
    reason, lacking = obstacle(mechanism), None
    parts = None if data is None else _placed(client, data)
    if reason is None and parts is not None and _is_stirred(client, parts):
        reason = "its encoder draws noise of its own, which no bound but local DP reckons with"
    elif reason is None:
        reason = roughness(mechanism) if parts is None else van_trees.obstacle(client, parts.read, seed=seed)
        lacking = None if parts is None else too_few(classes_of(parts.read, parts.n_classes))
    reasons = (reason, lacking, local_dp.obstacle(mechanism))
    return tuple(reason for reason in reasons if reason is not None)


def _placed(client: Client, data: ImageSet | Parts) -> Parts:
    """The images where the client is."""
    parts = parts_of(data) if isinstance(data, ImageSet) else data
    device = device_of(client)
    return parts if device is None else parts.to(device)


def _is_stirred(client: Client, parts: Parts) -> bool:
    """Whether something is random before the noise, which the mechanism does not tell."""
    return is_noisy(client, parts.read.images(slice(PROBES)))


def _van_trees(client: Client, parts: Parts, counts: tuple[int, ...], seed: int) -> list[Bound]:
    if len(parts.choose) < 2 or van_trees.obstacle(client, parts.read, seed=seed):  # one image: nothing to choose W on
        return []
    channel, probings = channel_of(client), [Probing(width=width, seed=seed) for width in (van_trees.WIDTH, None)]
    smooth, bare = (van_trees.look_unchecked(channel, parts, probing) for probing in probings)
    forms = (van_trees.smoothed, smooth), (van_trees.raw, bare)
    return [form(looks, releases=count) for count in counts for form, looks in forms]
