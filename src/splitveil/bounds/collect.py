"""All bounds that apply to a client, and why the others do not."""

from collections.abc import Sequence

from splitveil.bounds import local_dp, van_trees
from splitveil.bounds.base import Bound
from splitveil.bounds.channel import channel_of, obstacle, roughness
from splitveil.bounds.information import information
from splitveil.bounds.jacobian import Probing, has_gradient
from splitveil.bounds.parts import Parts, encoded, parts_of
from splitveil.bounds.two_point import has_pairs, two_point
from splitveil.data import ImageSet
from splitveil.split import Client


def bounds_of(
    client: Client, data: ImageSet | Parts, *, releases: int | Sequence[int] = 1, seed: int = 0
) -> tuple[Bound, ...]:
    """Every bound that applies to `releases` of one input, or to each of several numbers of them.

    Images move to the client's device. Guarantees: the same client, images and seed give the same bounds; the client is
    left as it was; empty for a client without noise, of which `missing` says why.
    """
    parts = parts_of(data) if isinstance(data, ImageSet) else data
    device = next((value.device for value in client.state_dict().values()), None)
    parts = parts if device is None else parts.to(device)
    counts = (releases,) if isinstance(releases, int) else tuple(releases)
    found: list[Bound] = []
    if obstacle(client.mechanism) is None:
        known = encoded(channel_of(client), parts)
        found += [bound for count in counts for bound in information(known, releases=count, seed=seed)]
        if has_pairs(known.read.classes):
            found += [two_point(known, parts.read, releases=count, seed=seed) for count in counts]
        found += _van_trees(client, parts, counts, seed)
    if local_dp.obstacle(client.mechanism) is None:
        found += [bound for count in counts for bound in local_dp.local_dp(client.mechanism, releases=count)]
    return tuple(found)


def missing(client: Client) -> tuple[str, ...]:
    """One line for each kind of bound that this client's mechanism does not have."""
    mechanism = client.mechanism
    no_noise = obstacle(mechanism)
    reasons = (no_noise, None if no_noise else roughness(mechanism), local_dp.obstacle(mechanism))
    return tuple(reason for reason in reasons if reason is not None)


def _van_trees(client: Client, parts: Parts, counts: tuple[int, ...], seed: int) -> list[Bound]:
    if roughness(client.mechanism) is not None or not has_gradient(channel_of(client), parts.read):
        return []
    if len(parts.choose) < 2:  # nothing to choose W on
        return []
    smooth, bare = (van_trees.look(client, parts, Probing(width=width, seed=seed)) for width in (van_trees.WIDTH, None))
    forms = (van_trees.smoothed, smooth), (van_trees.raw, bare)
    return [form(looks, releases=count) for count in counts for form, looks in forms]
