"""Images that have no roles yet, and how they are dealt out.

    of every class, in an order seeded by (seed, "roles"):   train 60 %, auxiliary 20 %, selection 5 %, victims 15 %

Of people (classes are identities) the auxiliary images show others than the classes: they come from another source, or
a fifth of the identities is set aside for them. Held-out photos of every second person are victims, of the others
selection, so auxiliary, selection and victims share nobody.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from splitveil.check import UsageError
from splitveil.data.imageset import ImageSet, Role
from splitveil.data.part import Part
from splitveil.randomness import derive

SHARES = {Role.AUXILIARY: 0.20, Role.SELECTION: 0.05, Role.VICTIMS: 0.15}  # train keeps the rest
HELD_OUT = 0.25  # of a person's photos: victims or selection
OTHERS = 0.2  # of the people, where no other source gives the auxiliary images
MOST_SELECTION = 0.2  # of a class, where an official half is smaller than usual

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Pool:
    """Images of one source with their labels, on the CPU or in files."""

    name: str
    part: Part
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    people: bool = False  # classes are identities
    family: str = ""  # sources of one family give the same people the same names

    def __len__(self) -> int:
        return len(self.part)

    @property
    def labels(self) -> Ints:
        """One class number an image."""
        return self.part.labels.numpy()

    @property
    def n_classes(self) -> int:
        """As many as have a name, or as the labels reach."""
        return len(self.classes) or int(self.labels.max(initial=-1)) + 1

    def take(self, chosen: Ints) -> "Pool":
        """The chosen images, in the order chosen."""
        return replace(self, part=self.part.select(torch.from_numpy(chosen)))

    def fair(self, chosen: Ints) -> Part:
        """The chosen images as a part whose first n, for any n, hold the classes as evenly as can be."""
        labels = self.labels[chosen]
        return self.part.select(torch.from_numpy(chosen[np.lexsort((labels, ranks(labels)))]))

    def identities(self) -> set[str]:
        """Who is shown, by class name, or by number where classes have none."""
        names = self.classes or range(self.n_classes)
        return {f"{self.family}/{names[label]}" for label in np.unique(self.labels)}


def ranks(labels: Ints) -> Ints:
    """For every entry, how many of its class come before it."""
    order = np.argsort(labels, kind="stable")
    before = np.searchsorted(labels[order], labels[order], side="left")
    out = np.empty_like(order)
    out[order] = np.arange(len(labels)) - before
    return out


def distinct(pool: Pool) -> Pool:
    """The pool without second copies of an image, saying how many there were."""
    first: dict[bytes, int] = {}
    for place, key in enumerate(pool.part.fingerprints()):
        first.setdefault(key, place)
    dropped = len(pool) - len(first)
    if not dropped:
        return pool
    kept = np.array(list(first.values()), np.int64)
    return replace(pool.take(kept), notes=(*pool.notes, f"{dropped} exact copies dropped"))


def refuse_shared(data: ImageSet) -> ImageSet:
    """Return `data` if no image is in two roles."""
    owner: dict[bytes, Role] = {}
    for role in Role:
        for key in data.part(role).fingerprints():
            first = owner.setdefault(key, role)
            if first is not role:
                pair = f"roles {first} and {role} of set {data.name!r}"
                raise UsageError(f"{pair} hold the same image; a victim must be new to everyone: drop one copy")
    return data


def deal(pool: Pool, *, seed: int, given: Mapping[Role, Part]) -> ImageSet:
    """An image set out of one pool; roles that are `given` come from elsewhere and take nothing from it.

    Guarantees: the same pool and seed give the same roles; classes keep their proportions; no image has two roles.
    """
    pool = distinct(pool)
    if pool.people and Role.AUXILIARY not in given:
        pool, others = _set_aside(pool, seed=seed)
        given = {**given, Role.AUXILIARY: others.fair(np.arange(len(others))).unlabeled()}
    shares = [_shares(pool, label, given) for label in range(pool.n_classes)]
    _refuse_rare(pool, shares)
    chosen = _choose(pool, shares, seed=seed)
    return assemble(pool, {role: given[role] if role in given else pool.fair(chosen[role]) for role in Role})


def official(train: Pool, test: Pool, *, n_selection: int) -> ImageSet:
    """The roles of a benchmark with an official train and test half, each in official order.

    Selection is the last `n_selection` of each class of train (a fifth, where a class has fewer than five times that);
    auxiliary is the first half of each class of test, victims the second.
    """
    most = (MOST_SELECTION * np.bincount(train.labels, minlength=train.n_classes)).astype(np.int64).clip(1, n_selection)
    last = ranks(train.labels[::-1])[::-1] < most[train.labels]
    first = ranks(test.labels) < np.bincount(test.labels, minlength=train.n_classes)[test.labels] // 2
    return assemble(
        replace(train, notes=(*train.notes, *test.notes)),
        {
            Role.TRAIN: train.fair(np.flatnonzero(~last)),
            Role.AUXILIARY: test.fair(np.flatnonzero(first)),
            Role.SELECTION: train.fair(np.flatnonzero(last)),
            Role.VICTIMS: test.fair(np.flatnonzero(~first)),
        },
    )


def assemble(facts: Pool, parts: Mapping[Role, Part]) -> ImageSet:
    """The set made of `parts`, with the name, classes and notes of `facts`. Shared images are refused."""
    data = ImageSet(
        name=facts.name,
        n_classes=facts.n_classes,
        train=parts[Role.TRAIN],
        auxiliary=parts[Role.AUXILIARY],
        selection=parts[Role.SELECTION],
        victims=parts[Role.VICTIMS],
        classes=facts.classes,
        people=facts.people,
        notes=facts.notes,
    )
    return refuse_shared(data)


def _shares(pool: Pool, label: int, given: Mapping[Role, Part]) -> dict[Role, float]:
    """Which share of a class each role takes; train keeps the rest."""
    shares = {Role.VICTIMS if label % 2 == 0 else Role.SELECTION: HELD_OUT} if pool.people else SHARES
    return {role: share for role, share in shares.items() if role not in given}


def _refuse_rare(pool: Pool, shares: list[dict[Role, float]]) -> None:
    """A class needs an image for each role that takes from it, and one for train."""
    for label, count in enumerate(np.bincount(pool.labels, minlength=pool.n_classes)):
        if 0 < count <= len(shares[label]):
            name = pool.classes[label] if pool.classes else str(label)
            wanted = f"{len(shares[label]) + 1} to be dealt into roles"
            raise UsageError(f"class {name} of {pool.name} has {count} images, needs {wanted}; add some or remove it")


def _choose(pool: Pool, shares: list[dict[Role, float]], *, seed: int) -> dict[Role, Ints]:
    """The places of every role's images; at least one of each class a role takes from."""
    rng = np.random.default_rng(derive(seed, "roles"))
    chosen: dict[Role, list[int]] = {role: [] for role in Role}
    for label, wanted in enumerate(shares):
        members = rng.permutation(np.flatnonzero(pool.labels == label)).tolist()
        counts = {role: max(1, round(share * len(members))) for role, share in wanted.items()}
        for role, count in counts.items():
            taken, members = members[:count], members[count:]
            chosen[role] += taken
        chosen[Role.TRAIN] += members
    return {role: np.array(places, np.int64) for role, places in chosen.items()}


def _set_aside(pool: Pool, *, seed: int) -> tuple[Pool, Pool]:
    """The people who are classes, renumbered, and the others, who are the attacker's own."""
    present = np.unique(pool.labels)
    shuffled = np.random.default_rng(derive(seed, "people")).permutation(present)
    known = np.sort(shuffled[round(OTHERS * len(present)) :])
    mine = np.isin(pool.labels, known)
    kept = pool.take(np.flatnonzero(mine))
    numbers = torch.from_numpy(np.searchsorted(known, kept.labels).astype(np.int64))
    classes = tuple(pool.classes[label] for label in known) if pool.classes else ()
    return replace(kept, part=kept.part.relabeled(numbers), classes=classes), pool.take(np.flatnonzero(~mine))
